"""The page of kinds."""
