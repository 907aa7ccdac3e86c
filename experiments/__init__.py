"""Benchmarks, load and failure tests, and reproductions of papers. Not part of the wheel."""
