"""Clusters: nodes, GPU types, agents, energy."""
