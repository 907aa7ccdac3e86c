"""Agent protocol: one ASGI application in front of Django's."""
