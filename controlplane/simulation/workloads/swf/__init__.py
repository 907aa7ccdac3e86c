"""Standard Workload Format: traces, and facts of a log beside its jobs."""
