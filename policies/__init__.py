"""Scheduling policies: pure functions from a snapshot to a plan (`policies.host.registry`)."""
