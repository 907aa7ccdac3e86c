"""Kinds of jobs: measurements, estimates, power."""
