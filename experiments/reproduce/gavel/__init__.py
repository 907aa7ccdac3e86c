"""Gavel's evaluation (Narayanan et al., OSDI 2020) reproduced."""
