"""Gavel's workloads: its traces, throughput tables and generator."""
