"""Arrays of jobs: what is read of them, and actions on all elements."""
