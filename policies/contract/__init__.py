"""The contract: snapshot, plan, parameters, and the validation of plans."""
