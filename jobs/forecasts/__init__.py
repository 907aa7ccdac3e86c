"""Forecasts: expected starts, stored, calibrated, scored and worded, and unknown run times."""
