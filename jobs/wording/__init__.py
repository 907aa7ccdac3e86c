"""Reasons for waiting in words."""
