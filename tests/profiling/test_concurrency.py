"""Two processes end launches at once: neither believes that the other's is still open, and nothing
is counted twice.
"""

from pathlib import Path

import pytest

from jobs.models import Assignment, Job, Kind
from profiling.models import Measurement, PairMeasurement, PairProfile, ProfileRun
from tests.builders import a_cluster, a_kind
from tests.builders_processes import at_once
from tests.builders_profiling import a_profiled_job, a_profiling_node, end, place, run_of
from tests.builders_sharing import a_shared_launch, a_shared_node, a_sharing_job

pytestmark = pytest.mark.django_db(transaction=True)

# Each process keeps its transaction open for a moment after its work, so that the two overlap
# whoever comes first.
ENDING = """
import time
from django.db import transaction
from jobs.models import Assignment
from profiling import services
assignment = Assignment.objects.select_related("job__cluster", "node").get(pk=sys.argv[2])
ready()
with transaction.atomic():
    getattr(services, sys.argv[3])(assignment)
    time.sleep(0.3)
"""


def end_at_once(folder: Path, *launches: Assignment, service: str = "profile_run_ended") -> None:
    """Call that service for each of these launches, each in a process of its own, all at the same
    time.
    """
    answers = at_once(folder, ENDING, *((launch.pk, service) for launch in launches))
    assert answers == [(0, "")] * len(launches)


def test_the_last_two_runs_of_a_kind_that_end_at_once_release_its_jobs(tmp_path: Path) -> None:
    cluster = a_cluster()
    node = a_profiling_node(cluster, gpus=2)
    job = a_profiled_job(cluster, gpus=2)
    twin = a_profiled_job(cluster, Kind.objects.get(pk=job.kind_id), gpus=2)
    launches = [end(place(run_of(job, gpus=g), node)) for g in (1, 2)]
    end_at_once(tmp_path, *launches)
    assert set(ProfileRun.objects.values_list("state", flat=True)) == {ProfileRun.State.DONE}
    assert set(Job.objects.filter(pk__in=[job.pk, twin.pk]).values_list("state", flat=True)) == {
        "queued"
    }
    assert Measurement.objects.count() == 2


def test_one_end_taken_in_by_two_processes_is_counted_once(tmp_path: Path) -> None:
    cluster = a_cluster()
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    launch = end(place(run_of(job), node))
    end_at_once(tmp_path, launch, launch)
    assert Measurement.objects.count() == 1
    assert Job.objects.get(pk=job.pk).state == "queued"


def test_two_launches_of_one_gpu_that_end_at_once_are_one_measurement_of_their_pair(
    tmp_path: Path,
) -> None:
    cluster = a_cluster()
    node = a_shared_node(cluster)
    launches = [
        a_shared_launch(a_sharing_job(cluster, a_kind()), node, slot=slot) for slot in (0, 1)
    ]
    end_at_once(tmp_path, *launches, service="production_measured")
    assert PairMeasurement.objects.count() == 1
    assert PairProfile.objects.get().samples == 1
