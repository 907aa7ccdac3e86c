"""Compiled loops of the Randomized Greedy."""
