"""Services of the agent protocol and of stops."""
