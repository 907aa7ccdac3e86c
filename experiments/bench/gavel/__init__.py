"""Benchmarks of policies of shares, and of Gavel's traces."""
