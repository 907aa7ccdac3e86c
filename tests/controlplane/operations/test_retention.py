"""What is pruned, what never is, and that rounds are packed."""

import json
import time
from datetime import timedelta
from io import StringIO
from itertools import count, repeat

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from knox.models import AuthToken
from pytest_django import Settings

from clusters.models import Cluster, EnrolmentToken, RescheduleEvent
from clusters.services.enrolment import issue_enrolment_token
from controlplane.loop.models import Round
from controlplane.loop.recompute import RoundNotFoundError, find_round, replay
from controlplane.operations import retention
from controlplane.operations.models import PruneClock
from controlplane.operations.retention import BATCH, Rule, is_steady, prune
from controlplane.operations.tasks import prune_old
from controlplane.studies.models import Simulation, SimulationFile
from controlplane.studies.services import simulation_unshare
from controlplane.web.storage.packed_json import PACKED, pack, unpack
from jobs.models import Assignment, IdempotencyKey, Job, JobEvent
from loadmaster.protocol import AssignmentState
from policies.contract import plan_json
from tests.builders import a_cluster, a_job, a_node, a_user
from tests.builders_jobs import a_placement, output
from tests.builders_live import a_round, placing
from tests.builders_profiling import tell_progress, tell_usage
from tests.builders_studies import a_done_simulation, a_simulation

NOW = timezone.now()
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    leaves | st.just("x" * 3000),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
)


@given(json_values)
def test_what_is_packed_comes_out_as_it_went_in(value: object) -> None:
    assert unpack(json.loads(json.dumps(pack(value)))) == value


def an_old_job(cluster: Cluster, *, ended_days: float, state: str = "completed") -> Assignment:
    """A job that ended so long ago, with output and samples."""
    moment = NOW - timedelta(days=ended_days)
    over = state in ("completed", "failed")
    job = a_job(cluster, state=state, completed_at=moment if over else None)
    reached = AssignmentState.SUCCEEDED if over else AssignmentState.RUNNING
    launch = a_placement(
        job, a_node(cluster), reached, ended_ago_s=ended_days * 86_400 if over else None
    )
    output(launch, b"one", b"two")
    tell_progress(launch, [1.0, 2.0])
    tell_usage(launch, cores=1.0, memory_gb=1.0, watts=10.0)
    return launch


def kept_of(launch: Assignment) -> tuple[int, int, int]:
    return launch.log_chunks.count(), launch.progress.count(), launch.usage.count()


def test_what_is_packed_already_is_packed_no_second_time() -> None:
    packed = pack({"jobs": ["job"] * 5000})
    assert pack(packed) == packed


@pytest.mark.django_db
def test_a_long_snapshot_is_packed_at_rest_and_whole_when_read() -> None:
    cluster = a_cluster()
    for _ in range(30):
        a_job(cluster)
    row = a_round(cluster)
    with connection.cursor() as cursor:
        cursor.execute("SELECT snapshot, plan FROM loop_round")
        stored = [
            value if isinstance(value, str) else json.dumps(value) for value in cursor.fetchone()
        ]
    assert all(PACKED in text for text in stored)
    assert len(stored[0]) < len(json.dumps(row.snapshot)) / 3
    assert plan_json.digest(replay(find_round(str(row.pk)))) == row.plan_sha256


@pytest.mark.django_db
def test_rows_of_before_packing_are_read_as_they_are() -> None:
    row = Round.objects.create(cluster=a_cluster(), number=1, policy="fifo", seed=1)
    plain = json.dumps({"jobs": ["x" * 100] * 50})
    cast = "::jsonb" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE loop_round SET snapshot = %s{cast}", [plain])
    row.refresh_from_db()
    assert row.snapshot == json.loads(plain)


@pytest.mark.django_db
def test_old_snapshots_go_newer_ones_and_each_clusters_newest_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "ROUNDS_KEPT", 2)
    cluster, other = a_cluster(name="a"), a_cluster(name="b")
    rows = [a_round(cluster, placing()) for _ in range(5)] + [a_round(other, placing())]
    Round.objects.exclude(pk=rows[2].pk).update(ended_at=NOW - timedelta(days=20))
    assert prune(NOW) == {"snapshots": 2}
    assert [r.snapshot is None for r in Round.objects.order_by("pk")] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    with pytest.raises(RoundNotFoundError, match="its snapshot has been pruned"):
        find_round("a:1")


@pytest.mark.django_db
def test_a_round_goes_with_the_events_it_answered_so_that_none_asks_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROUNDS_KEPT", 0)
    settings.KEEP_DAYS = {**settings.KEEP_DAYS, "events": 0}
    cluster = a_cluster()
    a_round(cluster, placing())
    Round.objects.update(ended_at=NOW - timedelta(days=500))
    prune(NOW)
    assert not Round.objects.exists()
    assert not RescheduleEvent.objects.filter(round=None).exists()


@pytest.mark.django_db
def test_events_that_wait_stay_however_old() -> None:
    cluster = a_cluster()
    a_round(cluster, placing())
    waiting = RescheduleEvent.objects.create(cluster=cluster, reason="operator")
    RescheduleEvent.objects.update(created_at=NOW - timedelta(days=99))
    assert prune(NOW) == {"events": 1}
    assert RescheduleEvent.objects.get() == waiting


@pytest.mark.django_db
def test_output_and_samples_of_jobs_that_ended_long_ago_go_and_their_history_says_so() -> None:
    cluster = a_cluster()
    old, young = an_old_job(cluster, ended_days=200), an_old_job(cluster, ended_days=100)
    running = an_old_job(cluster, ended_days=300, state="running")
    assert prune(NOW) == {"output": 2, "samples": 3}
    assert [kept_of(launch) for launch in (old, young, running)] == [
        (0, 0, 0),
        (2, 2, 1),
        (2, 2, 1),
    ]
    told = JobEvent.objects.filter(event="pruned")
    assert {event.data["what"] for event in told} == {"output", "samples"}
    assert {event.job_id for event in told} == {old.job_id}
    assert Job.objects.count() == 3
    assert Assignment.objects.count() == 3


@pytest.mark.django_db
def test_simulations_that_are_over_go_with_their_files_unless_they_are_shared() -> None:
    long_ago, lately = NOW - timedelta(days=91), NOW - timedelta(days=89)
    user = a_user()
    for state in ("done", "failed", "cancelled"):
        a_done_simulation(user, state=state, ended_at=long_ago)
    shared = a_done_simulation(user, ended_at=long_ago, share_key="a" * 43)
    young = a_done_simulation(user, ended_at=lately)
    waiting = a_simulation(user, ended_at=long_ago)
    with CaptureQueriesContext(connection) as asked:
        assert prune(NOW) == {"simulations": 3}
    assert not [query for query in asked if '"document"' in query["sql"]]
    assert set(Simulation.objects.all()) == {shared, young, waiting}
    assert set(SimulationFile.objects.values_list("simulation", flat=True)) == {shared.pk, young.pk}
    simulation_unshare(shared, user)
    assert prune(NOW) == {"simulations": 1}


@pytest.mark.django_db
def test_simulations_may_be_kept_for_ever(settings: Settings) -> None:
    settings.KEEP_DAYS = {**settings.KEEP_DAYS, "simulations": 0}
    a_done_simulation(ended_at=NOW - timedelta(days=9999))
    assert prune(NOW) == {}


@pytest.mark.django_db
def test_more_simulations_than_one_batch_holds_all_go() -> None:
    user = a_user()
    one = a_simulation(user)
    Simulation.objects.bulk_create(
        Simulation(
            name="x", user=user, document={}, state="done", ended_at=NOW - timedelta(days=100 + i)
        )
        for i in range(45)
    )
    assert prune(NOW) == {"simulations": 45}
    assert Simulation.objects.get() == one


@pytest.mark.django_db
def test_a_retried_jobs_early_output_stays_while_the_job_is_not_over() -> None:
    launch = an_old_job(a_cluster(), ended_days=300)
    Job.objects.update(state="running", completed_at=None)
    assert prune(NOW) == {}
    assert kept_of(launch) == (2, 2, 1)


@pytest.mark.django_db
def test_long_output_goes_in_batches_and_is_told_once() -> None:
    launch = an_old_job(a_cluster(), ended_days=200)
    output(launch, *[b"x"] * (BATCH + 10), stream="stderr")
    assert prune(NOW, names=("output",)) == {"output": BATCH + 12}
    assert JobEvent.objects.filter(event="pruned").count() == 1


@pytest.mark.django_db
def test_assignments_are_looked_for_once_for_many_of_them() -> None:
    cluster = a_cluster()
    for _ in range(25):
        an_old_job(cluster, ended_days=200)
    with CaptureQueriesContext(connection) as asked:
        assert prune(NOW, names=("output",)) == {"output": 50}
    looks = [query for query in asked if "EXISTS" in query["sql"]]
    assert len(looks) == 2, "one that finds all, one that finds no more"


def test_a_rule_with_more_than_fits_into_the_time_leaves_the_others_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = count(step=0.1)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))
    endless = Rule("a", None, lambda _: repeat(1))
    monkeypatch.setattr(retention, "RULES", (endless, Rule("b", None, lambda _: iter([2, 3]))))
    gone = prune(NOW, budget_s=10.0)
    assert gone["b"] == 5
    assert gone["a"] > 50, "what the others leave is used"


@pytest.mark.django_db
def test_fewer_days_than_the_least_are_refused(settings: Settings) -> None:
    settings.KEEP_DAYS = {**settings.KEEP_DAYS, "output": 1.0}
    with pytest.raises(
        ImproperlyConfigured, match=r"LOADMASTER_KEEP_OUTPUT_DAYS must be 0 .* or at least 7, not 1"
    ):
        prune(NOW)
    with pytest.raises(CommandError, match="LOADMASTER_KEEP_OUTPUT_DAYS"):
        call_command("prune", show=True, stdout=StringIO())


@pytest.mark.django_db
def test_zero_days_are_for_ever(settings: Settings) -> None:
    settings.KEEP_DAYS = dict.fromkeys(settings.KEEP_DAYS, 0.0)
    an_old_job(a_cluster(), ended_days=9000)
    assert prune(NOW) == {}


@pytest.mark.django_db
def test_what_has_expired_goes_and_what_has_not_stays() -> None:
    user = a_user()
    AuthToken.objects.create(user, expiry=timedelta(seconds=-5))
    AuthToken.objects.create(user, expiry=timedelta(hours=1))
    AuthToken.objects.create(user, expiry=None)
    job = a_job(a_cluster(), user=user)
    IdempotencyKey.objects.create(user=user, key="k", body_sha256="0" * 64, job=job)
    IdempotencyKey.objects.update(created_at=NOW - timedelta(days=31))
    assert prune(timezone.now()) == {"idempotency keys": 1, "tokens": 1}
    assert AuthToken.objects.count() == 2
    assert User.objects.filter(pk=user.pk).exists()


@pytest.mark.django_db
def test_the_command_says_what_went_and_what_is_kept() -> None:
    an_old_job(a_cluster(), ended_days=200)
    said = StringIO()
    call_command("prune", stdout=said)
    call_command("prune", stdout=said)
    call_command("prune", show=True, stdout=said)
    assert said.getvalue().startswith(
        "output: 2\nsamples: 3\nno data was old enough\nsnapshots: 14 days\n"
    )


@pytest.mark.django_db
def test_no_time_means_that_all_is_left_for_the_next_pass() -> None:
    launch = an_old_job(a_cluster(), ended_days=200)
    assert prune(NOW, budget_s=0.0) == {}
    assert kept_of(launch) == (2, 2, 1)


@pytest.mark.django_db
def test_a_clock_that_leaps_months_ahead_deletes_nothing_unless_it_stays_there_for_a_day() -> None:
    hour, ahead = timedelta(hours=1), timedelta(days=200)
    looks = [NOW + i * hour for i in range(25)]
    assert [is_steady(now) for now in looks] == [False] * 24 + [True]
    assert not is_steady(looks[-1] + ahead)
    assert not is_steady(looks[-1] + ahead + hour)
    assert not is_steady(looks[-1] + 2 * hour), "set right again"
    assert not is_steady(looks[-1] + 25 * hour)
    assert is_steady(looks[-1] + 26 * hour)
    assert is_steady(looks[-1] + timedelta(days=7)), "a server that was off for some days"


@pytest.mark.django_db
def test_the_hourly_look_deletes_by_a_steady_clock_only() -> None:
    launch = an_old_job(a_cluster(), ended_days=200)
    prune_old()
    assert kept_of(launch) == (2, 2, 1)
    PruneClock.objects.update(steady_since=NOW - timedelta(days=1))
    prune_old()
    assert kept_of(launch) == (0, 0, 0)


@pytest.mark.django_db
def test_of_enrolment_tokens_unused_ones_go_alone() -> None:
    cluster = a_cluster()
    for _ in range(2):
        issue_enrolment_token(cluster)
    used = EnrolmentToken.objects.latest("pk")
    EnrolmentToken.objects.update(expires_at=NOW - timedelta(days=900))
    EnrolmentToken.objects.filter(pk=used.pk).update(used_at=NOW - timedelta(days=900))
    assert prune(NOW) == {"enrolment tokens": 1}
    assert EnrolmentToken.objects.get() == used
