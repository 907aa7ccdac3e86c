"""Compiled list schedule of units on nodes."""
