"""Benchmarks of the simulator, of what-if and of forecasts."""
