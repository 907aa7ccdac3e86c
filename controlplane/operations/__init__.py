"""Operation: embedded default, demo, backups, retention, health, metrics."""
