"""Rounds of share policies: time slices by service account, their placements, and the plan."""
