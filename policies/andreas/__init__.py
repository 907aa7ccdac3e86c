"""ANDREAS (Filippini et al.): energy and tardiness at least cost."""
