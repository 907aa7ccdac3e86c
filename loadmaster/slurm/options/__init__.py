"""Options of sbatch and of other programs: names, forms and values."""
