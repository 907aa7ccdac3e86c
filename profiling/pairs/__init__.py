"""Pairs of kinds that share a GPU: measurements, estimates and runs."""
