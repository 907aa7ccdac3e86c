"""Pages of simulations."""
