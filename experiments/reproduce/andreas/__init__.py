"""The figures of ANDREAS' evaluation (Filippini et al., Section V), again: `python -m
experiments.reproduce.andreas`.
"""
