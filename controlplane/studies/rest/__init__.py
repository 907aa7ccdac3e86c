"""REST of simulations."""
