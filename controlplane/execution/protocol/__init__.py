"""The agent protocol's endpoints."""
