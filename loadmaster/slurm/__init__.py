"""Scripts for Slurm: options, what scripts see, steps, and the programs beside them. Pure."""
