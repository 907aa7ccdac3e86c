"""Where live rounds are solved: in a long-lived child of this process, outside of any transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.plan import Plan
from policies.registry import make
from policies.snapshot import Snapshot


def solve_here(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
    """Solve in this process: for tests, replay, and wherever no time limit is needed. Raises PolicyError."""
    return make(policy, parameters)(snapshot)
