"""Scheduling policies: pure functions from a snapshot to a plan. See `policies.host.registry` for the
list.
"""
