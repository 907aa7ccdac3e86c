"""Jobs and teams."""
