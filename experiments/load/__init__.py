"""Load of many agents, submitters and readers at once: `python -m experiments.load`."""
