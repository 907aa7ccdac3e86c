"""Least number of samples for which a median, a drift or a percentage is shown. Pure."""

LEAST_SAMPLES = 20
"""With fewer samples, nothing is shown."""


def too_few(samples: int, what: str) -> str:
    """Return a sentence if there are too few samples; "" if there are enough."""
    if samples >= LEAST_SAMPLES:
        return ""
    return f"Not enough {what} yet ({samples} of {LEAST_SAMPLES})"
