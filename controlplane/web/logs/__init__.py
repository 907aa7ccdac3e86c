"""Logs: one line an event, with ids and without secrets."""
