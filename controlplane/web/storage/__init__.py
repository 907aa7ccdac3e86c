"""Storage: many rows a statement, packed JSON, a mutex in the cache."""
