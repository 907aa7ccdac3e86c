"""The agent: `reconcile` decides, `loop` acts, `guard` is every job's parent and outlives both."""
