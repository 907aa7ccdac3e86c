"""Benchmarks of policies of ANDREAS and of the costs they reach."""
