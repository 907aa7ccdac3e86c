"""Backups and their restoration."""
