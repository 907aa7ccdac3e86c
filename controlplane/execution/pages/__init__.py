"""Page of nodes and their jobs."""
