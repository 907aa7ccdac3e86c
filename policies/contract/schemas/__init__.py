"""JSON Schemas of snapshot and plan; `python -m policies.contract.schemas` writes them."""
