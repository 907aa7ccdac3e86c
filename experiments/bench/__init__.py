"""Benchmarks: each module prints JSON lines (name, median, goal, ratio, unit, machine)."""
