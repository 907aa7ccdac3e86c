"""Kills and partitions: a real Loadmaster is struck at random moments, and the jobs' own journals
show that nothing was lost.
"""
