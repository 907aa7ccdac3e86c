"""The figures of Gavel's evaluation (Narayanan et al., OSDI 2020), again: `python -m
experiments.reproduce.gavel`.
"""
