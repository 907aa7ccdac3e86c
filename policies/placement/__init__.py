"""Placement of jobs on nodes: speed, free capacity, gangs, time slices, sharing, reasons."""
