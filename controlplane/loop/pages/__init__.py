"""The pages of the timeline and of rounds."""
