"""Compiled loops of the schedule search."""
