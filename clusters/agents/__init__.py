"""Agents' way in: refusals, checks of their words, and node tokens."""
