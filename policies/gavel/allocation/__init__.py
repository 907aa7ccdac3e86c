"""The problem that share policies solve: job classes, rates, pairs, and capacity."""
