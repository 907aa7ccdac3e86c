"""What runs outside the server: the client, the command line, the agent and the training library."""

__version__ = "0.1.0"
