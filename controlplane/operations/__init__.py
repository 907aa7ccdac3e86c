"""Running Loadmaster: embedded default, demo, backups, retention, health, metrics."""
