"""The pages of jobs."""
