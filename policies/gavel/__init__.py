"""Gavel (Narayanan et al.): shares of GPU time by linear programs, and policies like it."""
