from django.apps import AppConfig


class ExecutionConfig(AppConfig):
    name = "controlplane.execution"
    label = "execution"

    def ready(self) -> None:
        from controlplane.execution.services.stops import stop_job
        from jobs.signals import stop_wanted

        stop_wanted.connect(
            lambda job, reason, actor, **_: stop_job(job, reason, actor),
            weak=False,
            dispatch_uid="execution.stop_job",
        )
