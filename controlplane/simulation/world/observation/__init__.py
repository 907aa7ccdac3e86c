"""Observations of the simulated cluster: snapshots, and the speeds and run times known so far."""
