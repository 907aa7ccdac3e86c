"""Texts about a script: its bytes, variables, names of files and nodes, numbers of jobs."""
