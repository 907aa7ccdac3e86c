"""Hadar: gangs over mixed GPU types by prices (Sultana et al., 2024), a file for each idea."""
