"""Scheduling policies: pure functions from a snapshot to a plan. See `policies.registry` for the
list.
"""
