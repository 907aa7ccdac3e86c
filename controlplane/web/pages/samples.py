"""Number of samples from which on a median, a drift or a percentage is shown. Pure."""

LEAST_SAMPLES = 20


def too_few(samples: int, what: str) -> str:
    """Return how many samples are still missing, in words; "" if there are enough."""
    if samples >= LEAST_SAMPLES:
        return ""
    return f"Not enough {what} yet ({samples} of {LEAST_SAMPLES})"
