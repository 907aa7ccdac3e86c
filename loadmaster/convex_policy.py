"""Share policies written with cvxpy: `ConvexPolicy` and its `ShareProblem`. Needs extra `cvxpy`."""

from policies.gavel.convex import ConvexPolicy, ShareProblem

__all__ = ["ConvexPolicy", "ShareProblem"]
