"""`python -m experiments.bench`: every benchmark, one after another, as JSON lines of name, median, goal,
ratio, unit and machine.
"""

from __future__ import annotations

from experiments.bench import gap, policies, shares, simulator, traces, workloads

if __name__ == "__main__":
    policies.main()
    shares.main([])
    gap.main()
    workloads.main()
    simulator.main()
    traces.main([])
