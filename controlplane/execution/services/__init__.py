"""Services of the agent protocol, and of those who stop assignments."""
