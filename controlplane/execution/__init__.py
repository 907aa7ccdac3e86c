"""Execution: assignments carried out by agents, their leases, ends and pages."""
