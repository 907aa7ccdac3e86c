"""Load: what many agents, submitters and readers at once do to a server. `python -m experiments.load` prints
JSON lines.
"""
