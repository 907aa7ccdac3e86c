"""Lowest layer: helpers that know nothing of jobs, clusters or policies."""
