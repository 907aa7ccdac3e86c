"""Shares of time on GPUs: what the policies of Gavel divide, as linear programs over classes of
like jobs.
"""
