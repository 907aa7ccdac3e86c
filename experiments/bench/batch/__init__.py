"""Benchmarks of batch jobs: backfilling, constraint programming, run times."""
