"""Run times of batch jobs and of jobs without GPUs: predictions, and how far off they were."""
