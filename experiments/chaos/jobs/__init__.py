"""Programs of the jobs that chaos submits, and the list of their forms."""
