"""Faults: programs killed, links cut, disks filled, databases and brokers lost."""
