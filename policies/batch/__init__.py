"""Batch jobs: their queue beside a policy for training jobs."""
