"""Forecasts as people may read them: expected starts, and unknown run times as intervals."""
