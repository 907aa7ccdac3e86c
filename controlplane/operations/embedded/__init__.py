"""Embedded default: everything on one machine under one supervisor."""
