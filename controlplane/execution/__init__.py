"""Execution of decisions on nodes: what agents are told, and what they report."""
