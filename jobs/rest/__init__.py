"""REST of jobs, teams and tokens."""
