"""What is known of jobs: measurements, estimates, power."""
