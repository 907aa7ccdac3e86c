"""Reasons for waiting and for idle GPUs, as codes with facts; `jobs.wording` has the sentences."""
