"""HTTP: middleware, guards and limits of connections, bodies and callers."""
