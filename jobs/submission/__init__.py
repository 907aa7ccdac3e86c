"""Submission: checks, limits, and jobs written many at once."""
