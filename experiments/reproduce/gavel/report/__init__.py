"""Report of the reproduction: means and claims, charts, notes, one HTML page."""
