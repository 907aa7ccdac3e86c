"""Jobs, teams and their lives."""
