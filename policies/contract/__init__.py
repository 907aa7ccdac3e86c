"""Contract of policies: snapshot, plan, parameters, and validation of plans."""
