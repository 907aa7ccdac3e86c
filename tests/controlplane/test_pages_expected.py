"""Pages about expected starts and ends: jobs, rounds and the timeline."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from jobs.models import Assignment, Forecast, Job
from jobs.selectors import OTHERS
from tests.builders import a_job, a_team, a_user, at
from tests.builders_pages import Demo, a_busy_cluster, a_forecast
from tests.controlplane.test_pages import text

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


@pytest.fixture(name="ada")
def _ada(demo: Demo, client: Client) -> Client:
    client.force_login(demo.user)
    return client


def test_the_timeline_begins_with_a_span_that_shows_what_there_was(demo: Demo, ada: Client) -> None:
    assert "span=1h" in text(ada, "/timeline/")
    assert "span=7d" in text(ada, "/timeline/?span=7d")
    assert "span=1h" in text(ada, "/timeline/?span=nonsense&cluster=nowhere")


def test_a_waiting_job_tells_when_and_where_it_is_expected_to_start(
    demo: Demo, ada: Client
) -> None:
    for path in ("/", f"/jobs/{demo.waiting.pk}/"):
        page = text(ada, path)
        assert "2 GPUs on bravo" in page
        assert "in four of five cases" in page
    assert "place 1 in the queue" in page
    assert "place 1<" in text(ada, "/")


def test_a_start_that_is_unknown_says_why_and_a_started_job_how_far_off_its_forecast_was(
    demo: Demo, ada: Client
) -> None:
    Forecast.objects.filter(job=demo.waiting).update(
        planned_at=None, low_at=None, start_at=None, high_at=None, why="its run time is a riddle"
    )
    for path in ("/", f"/jobs/{demo.waiting.pk}/"):
        assert "its run time is a riddle" in text(ada, path)
    a_forecast(demo.running, 60.0, first=True, made_at=at(-600))
    Job.objects.filter(pk=demo.running.pk).update(started_at=at(180))
    page = text(ada, f"/jobs/{demo.running.pk}/")
    assert "later than first forecast" in page
    assert "outside its interval" in page


def test_a_batch_launch_says_from_what_its_run_time_was_expected(demo: Demo, ada: Client) -> None:
    launch = Assignment.objects.filter(job=demo.running)
    launch.update(predicted_run_s=120.0, predicted_source="user+name+kind")
    assert "by user, name, kind" in text(ada, f"/jobs/{demo.running.pk}/")


def test_a_run_time_that_nobody_knows_is_called_unknown(demo: Demo, ada: Client) -> None:
    page = f"/jobs/{demo.running.pk}/"
    assert "unknown" not in text(ada, page)
    Assignment.objects.update(predicted_run_s=None, steps_per_s=None)
    Forecast.objects.update(end_at=None)
    assert "no speed is known yet" in text(ada, page)
    assert "expected: unknown" in text(ada, page)
    assert "time left unknown" in text(ada, "/")
    traces = ada.get("/timeline/figure.json").json()["data"]
    for name in ("running", "coming"):
        (hovers,) = (t["hovertext"] for t in traces if t["name"] == name)
        assert any("its run time is unknown" in hover for hover in hovers), name


def coming(client: Client) -> Any:
    """Return the trace of the runs that are expected."""
    traces = client.get("/timeline/figure.json").json()["data"]
    (trace,) = (trace for trace in traces if trace["name"] == "coming")
    return trace


def test_a_run_on_gpus_is_never_drawn_on_cores(demo: Demo, ada: Client) -> None:
    on_cores = a_waiting_job(demo, "on-cores")
    a_forecast(on_cores, 500.0, node="bravo", gpus=0)
    Forecast.objects.filter(job=demo.waiting).update(nodes=["bravo"], gpus=4)
    trace = coming(ada)
    lanes = dict(zip(zip(trace["text"], trace["y"], strict=True), trace["x"], strict=True))
    assert {lane for name, lane in lanes if name == "on-cores"} == {"bravo · cores"}
    assert len({lane for name, lane in lanes if name == demo.waiting.name}) == 4
    assert ("recurrent-sequences", "bravo · cores") not in lanes


def test_runs_on_cores_at_once_have_rows_of_their_own(demo: Demo, ada: Client) -> None:
    Forecast.objects.all().delete()
    for name in ("one", "two"):
        a_forecast(a_waiting_job(demo, name), 500.0, node="bravo", gpus=0)
    trace = coming(ada)
    assert trace["y"] == ["bravo · cores"] * 2
    assert len(set(trace["offset"])) == 2


def a_waiting_job(demo: Demo, name: str) -> Job:
    """Return a job of Ada's that waits."""
    return a_job(demo.cluster, name=name, team=demo.team, user=demo.user, state="queued")


def a_score_of(demo: Demo, jobs: int) -> None:
    """Let so many jobs start that had a forecast."""
    for number in range(jobs):
        job = a_waiting_job(demo, f"started-{number}")
        a_forecast(job, 200.0, first=True, made_at=at(-10))
        Job.objects.filter(pk=job.pk).update(started_at=at(300), state="completed")


def test_a_score_of_few_jobs_is_not_shown(demo: Demo, ada: Client) -> None:
    a_score_of(demo, 2)
    page = text(ada, "/rounds/")
    assert "Not enough jobs yet (2 of 20)" in page
    assert "of the wait" not in page


def test_the_score_of_forecasts_stands_above_the_rounds(demo: Demo, ada: Client) -> None:
    Job.objects.filter(pk=demo.waiting.pk).update(started_at=at(300))
    page = text(ada, "/rounds/")
    assert page.index("Forecasts of starts") < page.index("Objective")


def test_the_timeline_draws_runs_that_are_expected_on_gpus_that_are_free_first(
    demo: Demo, client: Client
) -> None:
    client.force_login(demo.user)
    trace = coming(client)
    assert trace["text"] == ["recurrent-sequences"] * 2
    assert [lane[:6] for lane in trace["y"]] == ["bravo "] * 2
    assert trace["x"] == pytest.approx([600_000.0] * 2)
    assert trace["marker"]["pattern"]
    client.force_login(a_user(team=a_team()))
    assert coming(client)["text"] == [OTHERS] * 2


def test_the_score_of_forecasts_is_on_the_page_of_rounds(demo: Demo, ada: Client) -> None:
    assert "Forecasts of starts" not in text(ada, "/rounds/")
    a_score_of(demo, 20)
    page = text(ada, "/rounds/")
    assert "Forecasts of starts" in page
    assert "32% of the wait" in page


def test_the_timeline_draws_until_when_the_newest_round_expects_what_runs(
    demo: Demo, ada: Client
) -> None:
    def planned_ends() -> set[datetime]:
        traces = {t["name"]: t for t in ada.get("/timeline/figure.json").json()["data"]}
        bars = zip(traces["planned"]["base"], traces["planned"]["x"], strict=True)
        return {
            datetime.fromisoformat(base).replace(tzinfo=UTC) + timedelta(milliseconds=ms)
            for base, ms in bars
        }

    def near(ends: set[datetime], moment: datetime) -> bool:
        return any(abs((end - moment).total_seconds()) < 1 for end in ends)

    assert near(planned_ends(), demo.round.started_at + timedelta(seconds=420))
    demo.round.runs_expected = None  # as in a database of before, until its next round
    demo.round.save()
    launch = demo.running.assignments.get(state="running")
    ends = planned_ends()
    assert near(ends, (launch.running_at or launch.created_at) + timedelta(seconds=1000))
    assert not near(ends, demo.round.started_at + timedelta(seconds=420))
