"""The checked-in JSON Schemas of snapshot and plan; `python -m policies.schemas` writes them
anew.
"""
