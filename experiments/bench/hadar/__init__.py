"""Benchmarks of Hadar: time of a decision, payoff against the exact choice, Philly's traces."""
