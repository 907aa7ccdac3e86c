"""Decisions that another policy would make now."""
