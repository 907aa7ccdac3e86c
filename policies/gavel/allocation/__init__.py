"""Problem of share policies: job classes, rates, pairs, and capacity."""
