"""Benchmarks of the agent."""
