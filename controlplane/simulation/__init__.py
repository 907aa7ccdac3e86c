"""The loop on a virtual clock, without Django: the same rounds, changes and policies as the live
cluster's.
"""
