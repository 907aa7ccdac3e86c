"""Programs that a script finds beside it, and how they ask the server."""
