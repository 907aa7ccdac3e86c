"""The embedded default: everything on one machine under one supervisor."""
