"""The Django project and the scheduling loop."""
