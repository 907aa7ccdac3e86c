"""Reasons for waiting and for idle GPUs, as people read them."""
