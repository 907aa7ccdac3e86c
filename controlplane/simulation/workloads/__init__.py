"""Workloads to simulate: readers of traces and seeded generators, chosen by the `type` of a specification."""
