"""The node: its hardware, what it offers, and how it is measured."""
