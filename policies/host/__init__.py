"""Hosting of policies: the registry, the solver process, policies of third parties."""
