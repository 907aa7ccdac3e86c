"""The live cluster as a world of the loop: its one reader, its one writer of assignments, and the
lock of its rounds.
"""
