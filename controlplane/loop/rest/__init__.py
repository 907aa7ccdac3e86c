"""REST of rounds."""
