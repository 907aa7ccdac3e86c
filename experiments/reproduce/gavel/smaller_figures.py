"""Experiments on timelines, scaling, rounds, the estimator, costs, and table 3."""

from functools import partial

from experiments.reproduce.gavel.model import Chart, Claim, Experiment, Series, Spec
from experiments.reproduce.gavel.report import notes
from experiments.reproduce.gavel.scale import ROUND_S, Data, Scale, cluster

PHYSICAL = {"launch_s": 10.0, "stop_s": 5.0, "restart_cost_s": 5.0, "run_time_noise": 0.05}
"""Table 3's simulated physical run: launch, checkpoint and restart costs, noise."""

TABLE_3 = (
    ("jct_h", 3.4, 3.6, 3.39),
    ("jct_h", 5.2, 5.0, 5.10),
    ("makespan_h", 17.9, 17.7, 17.58),
    ("makespan_h", 21.9, 21.3, 22.11),
)
"""(metric, simulated and physical of the paper, simulated by the published program) by row."""

SIMULATED, AS_PHYSICAL = "simulated", "simulated physical run"


def timeline(scale: Scale, data: Data, figure: str, *, fifo: bool) -> Experiment:
    """Figures 11 and 21: shares of 18 jobs of three entities on 3 GPUs of each type."""
    spec = {
        "runner": "timeline",
        "gpus": cluster([3, 3, 3]),
        "throughputs": data.tables(),
        "jobs": 18,
        "every": 4,
        "fifo": fifo,
    }
    forms = ("aware", "agnostic", *(() if fifo else ("static partition",)))
    claims = []
    for form in forms[1:]:
        paper = None if fifo else 0.17
        all_there = f"throughput lost with all jobs there, {form}"
        over_time = f"throughput lost on average over time, {form}"
        claims += [
            Claim(all_there, "lost_at_last", form, paper=paper, better="near", whole=False),
            Claim(over_time, "lost", form, better="near", whole=False),
        ]
    parts = "Part of the total throughput by job, aware (entities in one colour)"
    totals = "Total throughput (of a job with equal time on all GPUs)"
    charts = Chart("parts", parts, "shares"), Chart("totals", totals, "totals")
    inside = f"{'FIFO' if fifo else 'fairness'} inside"
    title = f"Hierarchical policy over time: fairness among entities (weights 1, 2, 3), {inside}"
    note = notes.TIMELINE
    series = tuple(Series(form, {"form": form}) for form in forms)
    return Experiment(figure, title, "", {0.0: spec}, series, charts, tuple(claims), note)


def scaling(scale: Scale, data: Data) -> Experiment:
    """Figure 12: seconds to the shares of so many jobs."""
    forms = ("LAS", "LAS, sharing", "hierarchical", "hierarchical, sharing")
    spec = {"runner": "scaling", "throughputs": data.tables()}
    specs = {float(n): {**spec, "active": n} for n in scale.active}
    figures = (
        ("LAS, 2048 jobs (s)", forms[0], 2048.0, None, 0.178),
        ("LAS with sharing, 128 jobs (s)", forms[1], 128.0, None, 1.3),
        ("LAS with sharing, 512 jobs (s)", forms[1], 512.0, None, 79.6),
        ("hierarchical, 512 jobs (s)", forms[2], 512.0, None, 12.7),
        ("hierarchical, 2048 jobs (s; under)", forms[2], 2048.0, 600.0, None),
        ("hierarchical with sharing, 512 jobs (s; under)", forms[3], 512.0, 600.0, None),
    )
    claims = tuple(
        Claim(
            words,
            "seconds",
            form,
            at=jobs,
            paper=paper,
            published=published,
            better="less",
            whole=False,
        )
        for words, form, jobs, paper, published in figures
    )
    note = notes.SCALING
    charts = (Chart("seconds", "Seconds to the shares", log=True),)
    series = tuple(Series(form, {"form": form}) for form in forms)
    return Experiment(
        "12", "Time to decide", "active jobs", specs, series, charts, claims, note, seeds=1
    )


def rounds(scale: Scale, data: Data) -> Experiment:
    """Figure 13: the length of rounds, and the mechanism beside an ideal one."""
    load = scale.single[-2] if len(scale.single) > 2 else scale.single[-1]
    arriving = data.arriving("continuous-single", scale.jobs, scale.gap_s(load))
    common = {"gpus": cluster([scale.each] * 3), "window": list(scale.window), **arriving}
    specs = {s / 60.0: {"runner": "simulated", "round_s": s, **common} for s in scale.rounds_s}
    aware = Series.of("rounds", "max_min_fairness", form="aware")
    ideal = Series(
        "ideal",
        {
            "runner": "ideal",
            "round_s": 0.0,
            "policy": "max_min_fairness",
            "parameters": {"form": "aware"},
        },
    )
    claims = (
        Claim(
            "average JCT, rounds of 6 minutes over ideal",
            "jct_h",
            "ideal",
            "rounds",
            at=6.0,
            paper=1.0,
            better="near",
        ),
        Claim(
            "average JCT, rounds of 20 minutes over ideal",
            "jct_h",
            "ideal",
            "rounds",
            at=20.0,
            better="near",
        ),
    )
    note = notes.ROUNDS.format(load=load)
    charts = (Chart("jct_h", "Average job completion time (h)"),)
    return Experiment(
        "13", "Rounds", "minutes of a round", specs, (aware, ideal), charts, claims, note
    )


def estimates(scale: Scale, data: Data) -> Experiment:
    """Figure 14: what estimated throughputs of pairs cost."""
    sharing = {"policy": "max_min_fairness", "parameters": {"form": "sharing"}}
    series = (
        Series.of("no sharing", "max_min_fairness", form="aware"),
        Series("sharing, measured", sharing),
        Series("sharing, estimated", {**sharing, "observed": 0.2}),
    )
    common = {"runner": "simulated", "gpus": cluster([4, 4, 4]), "round_s": ROUND_S}
    specs: dict[float, Spec] = {}
    for load in scale.small:
        arriving = data.arriving("continuous-single", scale.jobs, 3600.0 / load)
        specs[load] = {**common, "window": list(scale.window), **arriving}
    claims = (
        Claim(
            "average JCT, estimated over measured",
            "jct_h",
            "sharing, measured",
            "sharing, estimated",
            paper=1.0,
            better="near",
        ),
        Claim(
            "average JCT, no sharing over estimated, up to",
            "jct_h",
            "sharing, estimated",
            "no sharing",
        ),
    )
    note = notes.ESTIMATES
    charts = (Chart("jct_h", "Average job completion time (h)"),)
    return Experiment(
        "14", "The estimator", "jobs per hour (on 12 GPUs)", specs, series, charts, claims, note
    )


def cost(scale: Scale, data: Data) -> Experiment:
    """Section 7.3, Cost: dollars and violated SLOs."""
    spec = {
        "runner": "cost",
        "gpus": cluster([scale.each] * 3),
        "round_s": ROUND_S,
        "throughputs": data.tables(),
    }
    specs = {0.0: {**spec, "jobs": scale.cost_jobs, "gap_s": 10_000.0 * 36 / scale.each}}
    forms: tuple[tuple[str, dict[str, str]], ...] = (
        ("", {}),
        (", published form", {"objective": "published"}),
    )
    series = [Series.of("most throughput", "max_throughput")]
    claims = []
    for form, parameters in forms:
        least, bound = f"least cost{form}", f"least cost with SLOs{form}"
        series += [
            Series.of(least, "min_cost", **parameters),
            Series.of(bound, "min_cost", slos=True, **parameters),
        ]
        claims += [
            Claim(
                f"cost, most throughput over {least}",
                "dollars",
                least,
                "most throughput",
                paper=1.4,
            ),
            Claim(
                f"cost, most throughput over {bound}",
                "dollars",
                bound,
                "most throughput",
                paper=1.23,
            ),
            Claim(f"SLOs violated, {least}", "violated", least, paper=0.35, better="less"),
            Claim(f"SLOs violated, {bound}", "violated", bound, paper=0.0, better="less"),
        ]
    note = notes.COST
    charts = (Chart("dollars", "Cost ($)"), Chart("violated", "Part of the SLOs that are violated"))
    return Experiment(
        "cost",
        "Costs and SLOs (section 7.3)",
        "",
        specs,
        tuple(series),
        charts,
        tuple(claims),
        note,
    )


def table_3(scale: Scale, data: Data) -> Experiment:
    """Table 3: the two traces, simulated without and with physical effects."""
    tables = data.tables("physical_cluster")
    common = {"runner": "simulated", "gpus": cluster([8, 16, 24]), "round_s": 1200.0}
    fair, batch = (
        {"type": "gavel", "path": data.trace(f"{name}.trace"), "throughputs": tables}
        for name in ("max_min_fairness", "minimize_makespan")
    )
    arriving = {**common, "window": [36, 61], "workload": fair}
    static = {**common, "window": None, "workload": batch}
    rows = (
        ("LAS aware, continuous", arriving, Series.of("", "max_min_fairness", form="aware")),
        ("LAS agnostic, continuous", arriving, Series.of("", "max_min_fairness", form="agnostic")),
        ("makespan aware, static", static, Series.of("", "makespan", form="aware")),
        ("Gandiva, static", static, Series.of("", "gandiva")),
    )
    series = tuple(
        Series(f"{label}, {how}", {**spec, **of.more, "switches": switches})
        for label, spec, of in rows
        for how, switches in ((SIMULATED, {}), (AS_PHYSICAL, PHYSICAL))
    )
    claims = [claim for i, row in enumerate(rows) for claim in _of_table_3(row[0], *TABLE_3[i])]
    note = notes.TABLE_3
    jct = Chart("jct_h", "Average job completion time (h)")
    charts = jct, Chart("makespan_h", "Makespan (h)")
    title = "Table 3: physical against simulated (8 V100, 16 P100, 24 K80)"
    return Experiment("T3", title, "", {0.0: {}}, series, charts, tuple(claims), note)


def _of_table_3(
    label: str, metric: str, paper: float, physical: float, published: float
) -> list[Claim]:
    simulated, real = f"{label}, {SIMULATED}", f"{label}, {AS_PHYSICAL}"
    claim = partial(Claim, metric=metric, whole=False)
    within = f"{label}: physical over simulated (paper: within 5%)"
    return [
        claim(
            f"{label}, simulated (h)", of=simulated, paper=paper, published=published, better="less"
        ),
        claim(f"{label}, physical (h)", of=real, paper=physical, better="less"),
        claim(within, of=simulated, over=real, paper=1.0, better="near"),
    ]
