"""Submission of jobs."""
