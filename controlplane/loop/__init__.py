"""Scheduling loop: events, rounds, and the live cluster as its world."""
