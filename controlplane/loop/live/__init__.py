"""Live cluster as a world of the loop: reader, writer of assignments, round lock."""
