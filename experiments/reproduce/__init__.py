"""Reproductions of the papers' evaluations."""
