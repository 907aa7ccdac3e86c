"""Units of jobs that have time together, and their turns on GPUs (Gandiva, AlloX)."""
