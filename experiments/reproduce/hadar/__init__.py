"""Hadar's evaluation (section IV) reproduced."""
