"""What an agent gets when it accepts: everything needed to run one rank. The only place where
secrets become plain.
"""

from __future__ import annotations

from controlplane.execution.gangs import gpus_of, rendezvous, token_of
from jobs.models import Assignment, Job
from jobs.secrets import reveal_references
from loadmaster.protocol import GANG, LaunchSpec


def launch_spec(assignment: Assignment) -> LaunchSpec:
    """The specification for an assignment read with job, team, kind, node and cluster. Raises
    jobs.secrets.SecretMissing.
    """
    job, node = assignment.job, assignment.node
    slots = list(assignment.slots.select_related("device").order_by("device__uuid", "slot"))
    place = "" if assignment.purpose == "profiling" else job.checkpoint_place
    return LaunchSpec(
        assignment=str(assignment.pk),
        job=str(job.pk),
        job_name=job.name,
        fence=assignment.fence,
        runtime=job.runtime,
        command=tuple(job.command),
        devices=tuple(slot.device.uuid for slot in slots),
        gpu_type=node.gpu_type.name,
        purpose=assignment.purpose,
        copy=assignment.copy,
        image=job.image,
        image_digest=job.image_digest,
        environment={
            name: value for name, value in job.environment.items() if isinstance(value, str)
        },
        secrets=reveal_references(job.team, job.environment),
        mounts=tuple(job.mounts),
        rank=assignment.rank,
        world_size=assignment.world_size,
        rendezvous=rendezvous(assignment),
        slot=slots[0].slot if slots else 0,
        share=assignment.share,
        cpu_quota=assignment.cpu_quota,
        cores=job.cores,
        memory_gb=job.memory_gb,
        steps=job.total_steps,
        steps_quota=assignment.steps_quota,
        term_until_s=assignment.term_until.timestamp() if assignment.term_until else None,
        # Its guard keeps what it was told first; whoever asks again is told the same.
        grace_s=node.cluster.grace_s if assignment.grace_s is None else assignment.grace_s,
        checkpoint_place=place,
        kind=job.kind.digest,
        kind_name=job.kind.name,
        required_features=required_features(job, assignment, place),
        gang_token=token_of(assignment),
        gang_gpus=gpus_of(assignment),
    )


def required_features(job: Job, assignment: Assignment, checkpoint_place: str) -> tuple[str, ...]:
    """What an agent must know to do it right; one that does not rejects the assignment."""
    wanted = {
        job.runtime: True,
        "emulated": assignment.node.emulated,
        "checkpoint": bool(checkpoint_place),
        "steps_quota": assignment.steps_quota is not None,
        GANG: assignment.world_size > 1,
    }
    return tuple(sorted(name for name, needed in wanted.items() if needed))
