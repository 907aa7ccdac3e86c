"""Audit: one row, never changed, for each change that people make; see docs/security.md."""
