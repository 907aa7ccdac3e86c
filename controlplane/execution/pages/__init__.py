"""The page of nodes and what runs on them."""
