"""The queue page's order is kept by the database: the same rows in the same order as by looking at
every job.
"""

import random
from datetime import datetime, timedelta
from importlib import import_module
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Case, F, IntegerField, Q, Value, When
from django.utils import timezone

from jobs.lifecycle import ENDED, JobState
from jobs.models import QUEUE_ORDER, Job, Team
from jobs.pages import selectors as page_selectors
from jobs.pages.selectors import PAGE_SIZE, QueueFilters, queue_numbers, queue_page
from jobs.selectors import id_begins, teams_of, visible_jobs
from tests.builders import a_cluster, a_job, a_kind, a_team, a_user

pytestmark = pytest.mark.django_db

NOW = timezone.now()
RUNNING, WAITING = (
    ("starting", "running", "stopping", "cancelling"),
    ("queued", "profiling", "held"),
)
STATES = {
    "": (*RUNNING, *WAITING), "running": RUNNING, "waiting": WAITING, "completed": ("completed",),
    "failed": ("failed", "cancelled"), "all": tuple(JobState),
}  # fmt: skip


def many_jobs(seed: int, count: int = 130) -> tuple[User, User]:
    """Jobs of three teams with equal and missing values in everything the order looks at: (member
    of two of them, operator).
    """
    rng, cluster = random.Random(seed), a_cluster()
    teams, kinds = [a_team(f"team-{i}") for i in range(3)], [a_kind("resnet"), a_kind("bert")]
    people = [a_user(f"person-{i}", team=team) for i, team in enumerate(teams)]
    people[0].teams.add(teams[1])
    template = a_job(cluster, team=teams[0], user=people[0], kind=kinds[0])
    jobs = []
    for i in range(count):
        state, who = rng.choice(list(JobState)), rng.randrange(3)
        jobs.append(
            Job(
                cluster=cluster, team=teams[who], user=people[who], kind=rng.choice(kinds),
                name=f"{rng.choice('abc')}-{i}",
                state=state, priority=rng.choice((-1, 0, 0, 2)), total_steps=template.total_steps,
                due_at=_some(rng, 3), completed_at=_some(rng, 3) or NOW if state in ENDED else None,
            )
        )  # fmt: skip
    Job.objects.bulk_create(jobs)
    for job in jobs:
        Job.objects.filter(pk=job.pk).update(submitted_at=NOW - timedelta(minutes=rng.randrange(4)))
    return people[0], a_user("the-operator", operator=True)


def _some(rng: random.Random, different: int) -> datetime | None:
    return NOW + timedelta(hours=rng.randrange(different)) if rng.random() < 0.6 else None


def by_looking_at_all(user: User, filters: QueueFilters) -> list[UUID]:
    """The queue as the page used to ask for it: every job that fits is looked at, joined and
    sorted.
    """
    jobs = visible_jobs(user).filter(state__in=STATES[filters.state])
    if filters.team:
        jobs = jobs.filter(team__name=filters.team)
    if filters.mine:
        jobs = jobs.filter(user=user)
    if filters.search:
        text = filters.search
        named = (
            Q(name__icontains=text)
            | Q(kind__name__icontains=text)
            | Q(user__username__icontains=text)
        )
        jobs = jobs.filter(named | id_begins(text))
    rank = Case(
        When(state__in=RUNNING, then=Value(0)),
        When(state__in=WAITING, then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )
    ordered = jobs.order_by(
        rank.asc(),
        "-priority",
        F("due_at").asc(nulls_last=True),
        "-completed_at",
        "submitted_at",
        "pk",
    )
    return list(ordered.values_list("pk", flat=True))


def leafed_through(user: User, filters: QueueFilters) -> tuple[list[UUID], int]:
    """The jobs of all pages in turn, and how many the pages say there are."""
    teams = list(teams_of(user))
    page, rows = queue_page(user, teams, filters, 1)
    later = (
        row
        for number in range(2, page.paginator.num_pages + 1)
        for row in queue_page(user, teams, filters, number)[1]
    )
    found = [row.job.pk for row in (*rows, *later)]
    return found, page.paginator.count


@pytest.mark.parametrize("state", STATES)
def test_pages_hold_the_same_jobs_in_the_same_order_as_by_looking_at_all(state: str) -> None:
    member, operator = many_jobs(seed=list(STATES).index(state))
    for user in (member, operator):
        for filters in (
            QueueFilters(state),
            QueueFilters(state, team="team-1"),
            QueueFilters(state, mine=True),
            QueueFilters(state, search="B-1"),
            QueueFilters(state, team="team-2", search="on-0"),
        ):
            expected = by_looking_at_all(user, filters)
            assert leafed_through(user, filters) == (expected, len(expected)), (user, filters)


def test_a_search_that_finds_more_than_is_read_at_once_leafs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member, operator = many_jobs(7)
    monkeypatch.setattr(page_selectors, "MOST_FOUND", PAGE_SIZE + 3)
    for user in (member, operator):
        expected = by_looking_at_all(user, QueueFilters("all", search="-1"))
        assert leafed_through(user, QueueFilters("all", search="-1")) == (expected, len(expected))
    assert len(expected) > PAGE_SIZE


def test_a_search_that_finds_many_kinds_and_people_finds_all_their_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, operator = many_jobs(6)
    monkeypatch.setattr(page_selectors, "MOST_KEYS", 1)
    for search in ("e", "o", "-0"):
        expected = by_looking_at_all(operator, QueueFilters("all", search=search))
        assert expected
        assert leafed_through(operator, QueueFilters("all", search=search))[0] == expected, search


def test_an_id_and_a_text_without_jobs_are_searched_for_as_before() -> None:
    _, operator = many_jobs(1)
    job = Job.objects.filter(state="queued")[0]
    assert leafed_through(operator, QueueFilters(search=str(job.pk)))[0] == [job.pk]
    assert leafed_through(operator, QueueFilters(search="50%_off")) == ([], 0)


@pytest.mark.parametrize("state", list(JobState))
def test_a_jobs_rank_follows_its_state_however_it_is_written(state: JobState) -> None:
    job = a_job(a_cluster())
    Job.objects.filter(pk=job.pk).update(state=state, due_at=NOW)
    job.refresh_from_db()
    rank = 0 if state in RUNNING else 1 if state in WAITING else 2
    assert (job.queue_rank, job.undated) == (rank, 0)
    job.due_at, job.state = None, JobState.QUEUED
    job.save()
    job.refresh_from_db()
    assert (job.queue_rank, job.undated) == (1, 1)


def test_the_headings_numbers_are_exact_and_of_those_one_may_see() -> None:
    for user in many_jobs(2):
        seen = visible_jobs(user)
        recent = seen.filter(
            state="completed", completed_at__gte=timezone.now() - timedelta(days=1)
        ).count()
        numbers = queue_numbers(user, list(teams_of(user)))
        expected = (
            seen.filter(state__in=RUNNING).count(),
            seen.filter(state__in=WAITING).count(),
            recent,
        )
        assert (numbers.running, numbers.waiting, numbers.completed) == expected


@pytest.mark.parametrize("of_team", [False, True])
def test_the_order_is_read_from_an_index_and_nothing_is_sorted(of_team: bool) -> None:
    many_jobs(3)
    chosen = {"team__in": [Team.objects.get(name="team-1").pk]} if of_team else {}
    if connection.vendor == "postgresql":  # for so few jobs it would read them all and sort
        with connection.cursor() as cursor:
            cursor.execute(
                "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL"
                " enable_sort = off"
            )
    jobs = (
        Job.objects.filter(queue_rank__lt=2, **chosen)
        .order_by(*QUEUE_ORDER, "pk")
        .values_list("pk", flat=True)[:50]
    )
    plan = jobs.explain()
    assert ("job_team_queue_order" if of_team else "job_queue_order") in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.postgres
def test_a_search_finds_names_by_an_index_and_reads_no_others() -> None:
    assert connection.vendor == "postgresql", "run with tests/with-postgres"
    many_jobs(5)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # so few jobs need no index
    plan = Job.objects.filter(page_selectors._matches("train")).order_by().explain()
    assert "job_name_trigrams" in plan


@pytest.mark.postgres
def test_a_server_that_does_not_allow_the_extension_is_searched_without_its_index() -> None:
    assert connection.vendor == "postgresql", "run with tests/with-postgres"
    migration = import_module("jobs.migrations.0002_names_by_trigrams")
    with connection.schema_editor() as editor:
        migration.remove_index(None, editor)
    with connection.cursor() as cursor:
        cursor.execute(
            "DROP EXTENSION pg_trgm CASCADE; CREATE ROLE nobody_much; SET LOCAL ROLE nobody_much"
        )
        cursor.execute(migration.MAY_HAVE_TRIGRAMS)
        assert cursor.fetchone() == (False,)
        cursor.execute("RESET ROLE")
        cursor.execute(migration.MAY_HAVE_TRIGRAMS)
        assert cursor.fetchone() == (True,)
