"""Measurements, estimates and power of kinds."""
