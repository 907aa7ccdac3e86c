"""REST of kinds."""
