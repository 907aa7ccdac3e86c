"""Scripts for Slurm's sbatch: options, numbers of jobs, names of files. Pure."""
