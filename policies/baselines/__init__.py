"""Baselines: queues in the order of arrival, due date or priority."""
