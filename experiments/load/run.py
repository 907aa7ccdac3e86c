"""One run on one database: start everything, play the scenarios, print their figures."""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import uvloop
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from knox.models import get_token_model

from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round
from controlplane.loop.models import Round
from controlplane.operations.embedded.local import Local, running_locally
from experiments.load import batch
from experiments.load.agents import run_agents
from experiments.load.arrays import arrays_in_turn, hold_arrays
from experiments.load.bursts import SEVEN_GPUS, burst, first_steps
from experiments.load.fleet import SimulatedAgent, make_fleet
from experiments.load.flood import Flood
from experiments.load.history import (
    HISTORY_DAYS,
    back_up_and_restore,
    long_pages,
    write_history,
)
from experiments.load.report import Report
from experiments.load.scenarios import (
    Figures,
    Stage,
    hand_in,
    hand_in_bulk,
    pages,
    read_pages,
    start_jobs,
)
from experiments.load.seed import Seeded, seed
from experiments.load.watch import Watch

FREE_PORT = 18_200
MOST_AGENTS = 500
"""Agents of the scenario arrays, which is about one member, not about a large fleet."""


def run(wanted: argparse.Namespace) -> int:
    """Play the scenarios asked for; 1 if anything that was acknowledged is lost."""
    report, scenarios = Report(connection.vendor, wanted.output), wanted.scenarios.split(",")
    report.say(f"{connection.vendor}: starting everything ...")
    with running_locally(FREE_PORT, report.say, nodes=SEVEN_GPUS) as local:
        address = urlsplit(local.url)
        stage = Stage((address.hostname or "127.0.0.1", address.port or 80), local.supervisor.pause)
        if "batch" in scenarios:
            _play_batch(local, stage, report, wanted)
        lost = _play(stage, report, scenarios, wanted)
    if "history" in scenarios:
        for name, figures in back_up_and_restore(settings.LOADMASTER_HOME / "load.backup"):
            report.scenario(name, figures)
    report.end()
    return 1 if lost else 0


def _play(stage: Stage, report: Report, scenarios: list[str], wanted: argparse.Namespace) -> int:
    lost = 0
    if "bursts" in scenarios:
        token, count = _admin_token(), wanted.burst
        times = min(10, wanted.starts)
        _watched(report, "submit to first step", partial(first_steps, stage, token, count=times))
        for kind in ("known", "new"):
            play = partial(burst, stage, token, count=count, kind=kind, known=kind == "known")
            _watched(report, f"{count} short jobs, {kind} kind", play)
    if "starts" in scenarios:
        _watched(
            report,
            "submit to running",
            lambda: start_jobs(stage, _admin_token(), count=wanted.starts),
        )
    if not {"starts", "bursts", "batch"}.issuperset(scenarios):
        lost += _play_large(stage, report, scenarios, wanted)
    return lost


def _play_batch(local: Local, stage: Stage, report: Report, wanted: argparse.Namespace) -> None:
    """Play batch jobs on nodes without GPUs of their own."""
    token = _admin_token()
    batch.start_nodes(local)
    alone = partial(batch.first_starts, stage, token, count=10)
    _watched(report, "one batch job, submit to running", alone)
    singles = partial(batch.single_jobs, stage, token, count=wanted.batch)
    _watched(report, f"{wanted.batch} batch jobs", singles)
    array = partial(batch.an_array, stage, token, size=wanted.array)
    _watched(report, f"an array of {wanted.array}", array)
    rest = partial(batch.one_after_another, stage, token, count=wanted.batch)
    _watched(report, "submissions, one after another", rest)
    batch.fill_nodes(stage, token)
    _watched(report, "the same on full nodes", rest)


def _play_large(
    stage: Stage, report: Report, scenarios: list[str], wanted: argparse.Namespace
) -> int:
    """Play the scenarios of a large cluster, and count what is lost."""
    lost = 0
    seeded = _seeded(report, wanted)
    if "pages" in scenarios:
        for name, figures in read_pages(stage, seeded, pages(seeded), times=wanted.reads):
            report.scenario(name, figures)
        with_arrays = hold_arrays(seeded, size=wanted.large_array)
        for name, figures in read_pages(stage, seeded, with_arrays, times=wanted.reads):
            report.scenario(name, figures)
    if "flood" in scenarios:
        greedy = Flood.of(stage, seeded)
        _watched(report, "others, before a flood", partial(greedy.before, wanted.seconds))
        _watched(report, "others, beside a flood", partial(greedy.beside, wanted.seconds))
    if "history" in scenarios:
        _play_history(stage, report, seeded, wanted)
    if "submissions" in scenarios:
        figures = _watched(
            report,
            "submissions",
            lambda: hand_in(
                stage, seeded, rate_per_s=wanted.single_rate, seconds=wanted.seconds, kill=True
            ),
        )
        lost += int(str(figures["lost"]))
    if "overload" in scenarios:
        name = f"submissions, {wanted.overload:g}/s offered"
        figures = _watched(
            report,
            name,
            lambda: hand_in(
                stage, seeded, rate_per_s=wanted.overload, seconds=wanted.seconds, kill=False
            ),
        )
        lost += int(str(figures["lost"]))
    if "bulk" in scenarios:
        figures = _watched(
            report,
            "submissions, 50 a call",
            lambda: hand_in_bulk(
                stage, seeded, rate_per_s=wanted.rate, seconds=wanted.seconds, size=50
            ),
        )
        lost += int(str(figures["lost"]))
    if "arrays" in scenarios:
        size = wanted.large_array
        agents = min(wanted.agents, MOST_AGENTS)
        play = partial(
            arrays_in_turn, stage, seeded, size=size, agents=agents, seconds=wanted.seconds
        )
        _watched(report, f"others, beside arrays of {size}", play)
    if "rounds" in scenarios:
        report.scenario("round", a_round(seeded.cluster))
    if "heartbeats" in scenarios:
        # The first rounds after rows were written in bulk start hundreds of jobs at once, for which
        # SQLite lets nobody else write. Nobody takes their offers: those expire after lease and
        # margin, 70 s, are withdrawn, and rounds start as many again.
        _wait_for_quiet(Cluster.objects.get(name=seeded.cluster))
        cluster = Cluster.objects.create(
            name="fleet", policy="fifo", heartbeat_s=10.0, lease_s=60.0
        )
        agents = make_fleet(cluster, wanted.agents, prefix="fleet")
        _take_stock()
        RescheduleEvent.objects.create(cluster=cluster, reason=Reason.OPERATOR)
        _wait_for_quiet(cluster)
        _watched(report, "heartbeats", lambda: _heartbeats(stage, agents, wanted.seconds))
    return lost


def _play_history(stage: Stage, report: Report, seeded: Seeded, wanted: argparse.Namespace) -> None:
    """Read pages beside a long past, then hold a round."""
    began_s = time.monotonic()
    write_history(Cluster.objects.get(name=seeded.cluster), jobs=wanted.ended, days=HISTORY_DAYS)
    _take_stock()
    report.say(f"  {wanted.ended} ended jobs written in {time.monotonic() - began_s:.0f} s")
    paths = {**pages(seeded), **long_pages(seeded.cluster)}
    for name, figures in read_pages(stage, seeded, paths, times=3):
        report.scenario(name, figures)
    report.scenario("round", a_round(seeded.cluster))


def _seeded(report: Report, wanted: argparse.Namespace) -> Seeded:
    began_s = time.monotonic()
    seeded = seed(jobs=wanted.jobs, nodes=wanted.nodes)
    _take_stock()
    report.say(
        f"  {wanted.jobs} jobs and {wanted.nodes} nodes written in"
        f" {time.monotonic() - began_s:.0f} s"
    )
    return seeded


def _take_stock() -> None:
    """Analyse the tables, as autovacuum does within minutes to any older database."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")


def _watched(report: Report, name: str, scenario: Callable[[], Figures]) -> Figures:
    with Watch() as watch:
        figures = scenario()
    report.scenario(name, {**figures, "stolen": watch.stolen, "parts": watch.figures})
    return figures


def _admin_token() -> str:
    return str(get_token_model().objects.create(User.objects.filter(is_superuser=True)[0])[1])


def _heartbeats(stage: Stage, agents: Sequence[SimulatedAgent], seconds: float) -> Figures:
    traffic = uvloop.run(
        run_agents(
            agents, *stage.place, seconds=seconds, heartbeat_s=10.0, warm_up_s=min(10.0, seconds)
        )
    )
    return traffic.summary()


def a_round(cluster: str) -> Figures:
    """One round of that cluster in this process: its seconds, by part, and what it looked at."""
    house = Cluster.objects.get(name=cluster)
    _wait_for_quiet(house)
    RescheduleEvent.objects.create(cluster=house, reason=Reason.OPERATOR)
    began_s, used_s = time.monotonic(), time.process_time()
    result = hold_round(house.pk, Ports(solve_here))
    if result is None:
        return {"held": "by another process"}
    row = Round.objects.filter(cluster=house).defer("snapshot", "plan").latest("number")
    return {
        "seconds": round(time.monotonic() - began_s, 2),
        "cpu_s": round(time.process_time() - used_s, 2),
        "snapshot_s": row.snapshot_s,
        "solve_s": row.solve_s,
        "apply_s": row.apply_s,
        "jobs": len(result.snapshot.jobs),
        "queued": house.jobs.filter(state="queued").count(),
        "placed": len(result.plan.placements),
    }


def _wait_for_quiet(cluster: Cluster, patience_s: float = 60.0) -> None:
    """Until no round is wanted or held: what is measured is to be alone."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s and (
        RescheduleEvent.objects.filter(cluster=cluster, round=None).exists()
        or Cluster.objects.filter(pk=cluster.pk).exclude(round_owner="").exists()
    ):
        time.sleep(0.5)
