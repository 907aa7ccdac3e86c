"""Guards of jobs: each the parent of one, which outlives the agent and stops it in time."""
