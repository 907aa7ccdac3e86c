"""Checks of a run: journals, walltimes, batch jobs, and the server's own records."""
