"""Energy and cost: the ledger, bills, and their pages and REST."""
