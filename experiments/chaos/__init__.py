"""Kills and partitions of a real Loadmaster, judged by the journals of its jobs."""
