"""Database backend: Django's for SQLite, with another wait for the writers' lock."""
