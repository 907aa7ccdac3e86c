"""What is assumed of a kind of which nothing is known and that no node can measure.

The user's walltime is a declaration: the job's steps within that time on the slowest GPUs it may
use. Without one an hour is taken and called an estimate.
"""

from __future__ import annotations

from clusters.models import GpuType
from jobs.models import Job
from jobs.moves import note_job
from policies.contract.snapshot import Source
from profiling.models import Profile

NOMINAL_RUN_S = 3600.0


def assume(job: Job) -> bool:
    """Write the assumption for the job's kind and its history; False without a GPU type."""
    types = (
        GpuType.objects.filter(name__in=job.allowed_types)
        if job.allowed_types
        else GpuType.objects.all()
    )
    here = types.filter(nodes__cluster=job.cluster_id)
    slowest = here.order_by("tflops").first() or types.order_by("tflops").first()
    if slowest is None:
        return False
    walltime_s = job.walltime_s if job.walltime_s and job.walltime_s > 0 else None
    run_s = walltime_s or NOMINAL_RUN_S
    Profile.objects.get_or_create(
        kind_id=job.kind_id, gpu_type=slowest, gpus=job.gpus_min, spread=False,
        defaults={
            "steps_per_s": max(1, job.total_steps) / run_s,
            "source": Source.DECLARED if walltime_s else Source.ESTIMATED,
        },
    )  # fmt: skip
    basis = "its walltime" if walltime_s else "an assumed hour"
    message = (
        f"nothing is known of its kind and no node can measure it: {basis} is taken as its run time"
        f" on {slowest.name}"
    )
    note_job(job, "warning", data={"message": message})
    return True
