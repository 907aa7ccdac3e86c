"""Django application configuration."""

from django.apps import AppConfig


class ProfilingConfig(AppConfig):
    name = "profiling"

    def ready(self) -> None:
        """Ask for profile runs of the kinds of jobs that enter the queue."""
        from jobs.signals import jobs_queued
        from profiling.services import request_profiles

        jobs_queued.connect(
            lambda jobs, **_: request_profiles(jobs),
            weak=False,
            dispatch_uid="profiling.request_profiles",
        )
