"""Linear programs and water filling that compute shares of GPU time."""
