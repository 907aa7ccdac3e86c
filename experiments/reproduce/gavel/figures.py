"""The experiments: figures of the paper's evaluation with their claims, as data."""

from collections.abc import Callable, Mapping

from experiments.reproduce.gavel.model import Chart, Claim, Experiment, Series
from experiments.reproduce.gavel.report import notes
from experiments.reproduce.gavel.scale import ROUND_S, Data, Scale, cluster
from experiments.reproduce.gavel.smaller_figures import (
    cost,
    estimates,
    rounds,
    scaling,
    table_3,
    timeline,
)

LOAD = "jobs per hour (on 108 GPUs)"
JCT = Chart("jct_h", "Average job completion time (h)")
JCTS = Chart(
    "jct_quantiles_h", "Completion times at the highest load: part of the jobs (h)", "quantiles"
)
AGNOSTIC, AWARE, SHARED, GANDIVA, ALLOX, FIFO = (
    "agnostic",
    "aware",
    "aware, sharing",
    "Gandiva's packing",
    "AlloX",
    "FIFO",
)


def experiments(scale: Scale, data: Data) -> tuple[Experiment, ...]:
    """All of them: figures 8 to 14 and 16 to 21, table 3, and section 7.3's costs."""
    made: Mapping[str, Callable[[Scale, Data], Experiment]] = {
        "8": _las_single,
        "9": _las_multiple,
        "10": _ftf_multiple,
        "11": _fair_timeline,
        "12": scaling,
        "13": rounds,
        "14": estimates,
        "16": _fifo_single,
        "17": _ftf_single,
        "18": _fifo_multiple,
        "19": _makespan,
        "20": _priorities,
        "21": _fifo_timeline,
        "T3": table_3,
        "cost": cost,
    }
    return tuple(make(scale, data) for make in made.values())


def three(policy: str) -> tuple[Series, ...]:
    """The three forms of a share policy."""
    forms = ((AGNOSTIC, "agnostic"), (AWARE, "aware"), (SHARED, "sharing"))
    return tuple(Series.of(label, policy, form=form) for label, form in forms)


def _continuous(
    scale: Scale,
    data: Data,
    of: tuple[str, str],
    mode: str,
    series: tuple[Series, ...],
    claims: tuple[Claim, ...],
    *,
    charts: tuple[Chart, ...] = (JCT, JCTS),
    note: str = notes.STEADY,
    heavy: float = 0.0,
) -> Experiment:
    """Average completion times over loads; `of`: id and title."""
    loads = scale.single if mode.endswith("single") else scale.multiple
    common = {
        "runner": "simulated",
        "gpus": cluster([scale.each] * 3),
        "round_s": ROUND_S,
        "window": list(scale.window),
    }
    specs = {}
    for load in loads:
        arriving = data.arriving(mode, scale.jobs, scale.gap_s(load))
        if heavy:  # the published stream knows no priorities
            arriving = {"workload": {**arriving["workload"], "heavy": heavy}}
        specs[load] = {**common, **arriving}
    return Experiment(of[0], of[1], LOAD, specs, series, charts, claims, note)


def _las_single(scale: Scale, data: Data) -> Experiment:
    series = (*three("max_min_fairness"), Series.of(GANDIVA, "gandiva"), Series.of(ALLOX, "allox"))
    claims = (
        Claim("average JCT, agnostic over aware, up to", "jct_h", AWARE, AGNOSTIC, paper=3.5),
        Claim(
            "average JCT, Gandiva's packing over sharing, up to",
            "jct_h",
            SHARED,
            GANDIVA,
            paper=2.2,
        ),
        Claim(
            "average JCT, aware at 4 jobs/h (h)",
            "jct_h",
            AWARE,
            at=4.0,
            published=17.07,
            better="less",
        ),
        Claim(
            "average JCT, agnostic at 4 jobs/h (h)",
            "jct_h",
            AGNOSTIC,
            at=4.0,
            published=23.75,
            better="less",
        ),
        Claim(
            "average JCT, AlloX at 4 jobs/h (h)",
            "jct_h",
            ALLOX,
            at=4.0,
            published=18.02,
            better="less",
        ),
        Claim(
            "average JCT, aware at 5 jobs/h (h)",
            "jct_h",
            AWARE,
            at=5.0,
            published=20.45,
            better="less",
        ),
        Claim(
            "average JCT, agnostic at 5 jobs/h (h)",
            "jct_h",
            AGNOSTIC,
            at=5.0,
            published=51.40,
            better="less",
        ),
    )
    title = "Least attained service, one GPU a job (continuous-single)"
    return _continuous(scale, data, ("8", title), "continuous-single", series, claims)


def _las_multiple(scale: Scale, data: Data) -> Experiment:
    series = (*three("max_min_fairness"), Series.of(GANDIVA, "gandiva"))
    claims = (
        Claim("average JCT, agnostic over aware, up to", "jct_h", AWARE, AGNOSTIC, paper=2.2),
        Claim(
            "average JCT, Gandiva's packing over sharing, up to",
            "jct_h",
            SHARED,
            GANDIVA,
            paper=2.2,
        ),
    )
    title = "Least attained service, several GPUs a job (continuous-multiple)"
    return _continuous(scale, data, ("9", title), "continuous-multiple", series, claims)


def _ftf_multiple(scale: Scale, data: Data) -> Experiment:
    return _ftf(scale, data, "10", "continuous-multiple", 3.0, 2.8)


def _ftf_single(scale: Scale, data: Data) -> Experiment:
    return _ftf(scale, data, "17", "continuous-single", None, None)


def _ftf(
    scale: Scale, data: Data, figure: str, mode: str, jct: float | None, rho: float | None
) -> Experiment:
    claims = (
        Claim("average JCT, agnostic over aware, up to", "jct_h", AWARE, AGNOSTIC, paper=jct),
        Claim(
            "average finish-time fairness, agnostic over aware, up to",
            "rho",
            AWARE,
            AGNOSTIC,
            paper=rho,
        ),
    )
    charts = (
        JCT,
        Chart("rho", "Average finish-time fairness rho"),
        Chart("rho_quantiles", "rho: part of the jobs", "quantiles"),
    )
    note = notes.RHO
    title = f"Finish-time fairness ({mode})"
    series = three("finish_time_fairness")[:2]
    return _continuous(scale, data, (figure, title), mode, series, claims, charts=charts, note=note)


def _fifo_single(scale: Scale, data: Data) -> Experiment:
    claims = (
        Claim("average JCT, agnostic over aware, up to", "jct_h", AWARE, AGNOSTIC, paper=2.7),
        Claim("average JCT, agnostic over sharing, up to", "jct_h", SHARED, AGNOSTIC, paper=3.8),
        Claim("average JCT, aware over sharing, up to", "jct_h", SHARED, AWARE, paper=1.4),
        Claim(
            "average JCT, aware at 4 jobs/h (h)",
            "jct_h",
            AWARE,
            at=4.0,
            published=17.33,
            better="less",
        ),
    )
    note = notes.FIFO_NOTE
    title = "FIFO, one GPU a job (continuous-single)"
    return _continuous(
        scale, data, ("16", title), "continuous-single", three("fifo_shares"), claims, note=note
    )


def _fifo_multiple(scale: Scale, data: Data) -> Experiment:
    claims = (
        Claim("average JCT, agnostic over aware, up to", "jct_h", AWARE, AGNOSTIC),
        Claim("average JCT, aware over sharing, up to", "jct_h", SHARED, AWARE, paper=1.1),
    )
    title = "FIFO, several GPUs a job (continuous-multiple)"
    return _continuous(
        scale, data, ("18", title), "continuous-multiple", three("fifo_shares"), claims
    )


def _priorities(scale: Scale, data: Data) -> Experiment:
    claims = (
        Claim(
            "average JCT of high priority, agnostic over aware, up to",
            "jct_high_h",
            AWARE,
            AGNOSTIC,
            paper=1.5,
        ),
        Claim(
            "average JCT of low priority, agnostic over aware, up to",
            "jct_low_h",
            AWARE,
            AGNOSTIC,
            paper=2.7,
        ),
    )
    charts = (
        Chart("jct_high_h", "Average completion time, high priority (h)"),
        Chart("jct_low_h", "Average completion time, low priority (h)"),
    )
    note = notes.PRIORITIES
    title = "Least attained service with 20% of the jobs at high priority (continuous-multiple)"
    series = three("max_min_fairness")[:2]
    return _continuous(
        scale,
        data,
        ("20", title),
        "continuous-multiple",
        series,
        claims,
        charts=charts,
        note=note,
        heavy=0.2,
    )


def _makespan(scale: Scale, data: Data) -> Experiment:
    common = {
        "runner": "simulated",
        "gpus": cluster([scale.each] * 3),
        "round_s": ROUND_S,
        "window": None,
    }
    drawn = {"type": "gavel_generator", "mode": "static-multiple", "throughputs": data.tables()}
    specs = {float(n): {**common, "workload": {**drawn, "jobs": n}} for n in scale.static}
    series = (
        Series.of(FIFO, "fifo_shares", form="agnostic"),
        Series.of(GANDIVA, "gandiva"),
        *three("makespan"),
    )
    claims = (
        Claim("makespan, FIFO over aware, up to", "makespan_h", AWARE, FIFO, paper=2.5),
        Claim(
            "makespan, Gandiva's packing over aware, up to", "makespan_h", AWARE, GANDIVA, paper=1.4
        ),
        Claim("makespan, aware over sharing, up to", "makespan_h", SHARED, AWARE, paper=1.08),
    )
    note = notes.MAKESPAN
    charts = (Chart("makespan_h", "Time until all jobs are done (h)"),)
    return Experiment(
        "19", "Makespan (static-multiple)", "jobs", specs, series, charts, claims, note
    )


def _fair_timeline(scale: Scale, data: Data) -> Experiment:
    return timeline(scale, data, "11", fifo=False)


def _fifo_timeline(scale: Scale, data: Data) -> Experiment:
    return timeline(scale, data, "21", fifo=True)
