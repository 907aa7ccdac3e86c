"""Simulated world: virtual clock, jobs by column, and outcome of a run."""
