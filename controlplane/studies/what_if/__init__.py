"""What-if: what another policy would decide now."""
