"""Batch scripts for Slurm: options of a script and a command line become fields of a job."""
