"""Simulations under way: taken, watched, stopped, resumed."""
