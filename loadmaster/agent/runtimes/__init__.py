"""Runtimes: `process` runs a guarded command, `docker` containers, `fake` virtual time."""
