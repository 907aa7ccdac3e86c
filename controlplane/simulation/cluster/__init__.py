"""Simulated clusters: their file, nodes, speeds and energy."""
