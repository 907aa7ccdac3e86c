"""Simulations for users: rows, run by workers in child processes, on pages and REST."""
