"""Simulated world: a state, functions of events on it, and rounds on a virtual clock."""
