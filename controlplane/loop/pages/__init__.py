"""Pages of the timeline and of rounds."""
