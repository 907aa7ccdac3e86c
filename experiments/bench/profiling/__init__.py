"""Benchmarks of estimates, exploration and first runs."""
