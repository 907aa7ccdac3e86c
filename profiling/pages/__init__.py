"""Page of kinds."""
