"""ANDREAS' evaluation (Filippini et al., Section V) reproduced."""
