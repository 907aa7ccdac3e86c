"""Wall clocks that jump and drift, for single programs and without root."""
