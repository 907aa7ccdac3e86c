"""Experiments on timelines, scaling, rounds, the estimator, costs, and table 3."""

from __future__ import annotations

from experiments.reproduce.gavel import notes
from experiments.reproduce.gavel.model import Chart, Claim, Experiment, Series, Spec
from experiments.reproduce.gavel.scale import ROUND_S, Data, Scale, cluster

PHYSICAL = {"launch_s": 10.0, "stop_s": 5.0, "restart_cost_s": 5.0, "run_time_noise": 0.05}
"""Table 3's simulated physical run: launch, checkpoint and restart costs, noise."""

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
    claims = [
        claim
        for form in forms[1:]
        for claim in (
            Claim(
                f"throughput lost with all jobs there, {form}",
                "lost_at_last",
                form,
                paper=None if fifo else 0.17,
                better="near",
                whole=False,
            ),
            Claim(
                f"throughput lost on average over time, {form}",
                "lost",
                form,
                better="near",
                whole=False,
            ),
        )
    ]
    inside = "FIFO" if fifo else "fairness"
    charts = (
        Chart(
            "parts", "Part of the total throughput by job, aware (entities in one colour)", "shares"
        ),
        Chart("totals", "Total throughput (of a job with equal time on all GPUs)", "totals"),
    )
    note = notes.TIMELINE
    title = (
        f"Hierarchical policy over time: fairness among entities (weights 1, 2, 3), {inside} inside"
    )
    series = tuple(Series(form, {"form": form}) for form in forms)
    return Experiment(figure, title, "", {0.0: spec}, series, charts, tuple(claims), note)


def scaling(scale: Scale, data: Data) -> Experiment:
    """Figure 12: seconds to the shares of so many jobs."""
    forms = ("LAS", "LAS, sharing", "hierarchical", "hierarchical, sharing")
    spec = {"runner": "scaling", "throughputs": data.tables()}
    specs = {float(n): {**spec, "active": n} for n in scale.active}
    claims = (
        Claim(
            "LAS, 2048 jobs (s)",
            "seconds",
            "LAS",
            at=2048.0,
            published=0.178,
            better="less",
            whole=False,
        ),
        Claim(
            "LAS with sharing, 128 jobs (s)",
            "seconds",
            "LAS, sharing",
            at=128.0,
            published=1.3,
            better="less",
            whole=False,
        ),
        Claim(
            "LAS with sharing, 512 jobs (s)",
            "seconds",
            "LAS, sharing",
            at=512.0,
            published=79.6,
            better="less",
            whole=False,
        ),
        Claim(
            "hierarchical, 512 jobs (s)",
            "seconds",
            "hierarchical",
            at=512.0,
            published=12.7,
            better="less",
            whole=False,
        ),
        Claim(
            "hierarchical, 2048 jobs (s; under)",
            "seconds",
            "hierarchical",
            at=2048.0,
            paper=600.0,
            better="less",
            whole=False,
        ),
        Claim(
            "hierarchical with sharing, 512 jobs (s; under)",
            "seconds",
            forms[3],
            at=512.0,
            paper=600.0,
            better="less",
            whole=False,
        ),
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
    tables, gpus = data.tables("physical_cluster"), cluster([8, 16, 24])
    common = {"runner": "simulated", "gpus": gpus, "round_s": 1200.0}
    arriving = {
        **common,
        "window": [36, 61],
        "workload": _recorded(data, "max_min_fairness.trace", tables),
    }
    static = {
        **common,
        "window": None,
        "workload": _recorded(data, "minimize_makespan.trace", tables),
    }
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
    metrics = ("jct_h", "jct_h", "makespan_h", "makespan_h")
    paper, physical, published = (
        (3.4, 5.2, 17.9, 21.9),
        (3.6, 5.0, 17.7, 21.3),
        (3.39, 5.10, 17.58, 22.11),
    )
    claims = []
    for (label, _, _), metric, simulated, real, program in zip(
        rows, metrics, paper, physical, published, strict=True
    ):
        claims += [
            Claim(
                f"{label}, simulated (h)",
                metric,
                f"{label}, {SIMULATED}",
                paper=simulated,
                published=program,
                better="less",
                whole=False,
            ),
            Claim(
                f"{label}, physical (h)",
                metric,
                f"{label}, {AS_PHYSICAL}",
                paper=real,
                better="less",
                whole=False,
            ),
            Claim(
                f"{label}: physical over simulated (paper: within 5%)",
                metric,
                f"{label}, {SIMULATED}",
                f"{label}, {AS_PHYSICAL}",
                paper=1.0,
                better="near",
                whole=False,
            ),
        ]
    note = notes.TABLE_3
    charts = (
        Chart("jct_h", "Average job completion time (h)"),
        Chart("makespan_h", "Makespan (h)"),
    )
    title = "Table 3: physical against simulated (8 V100, 16 P100, 24 K80)"
    return Experiment("T3", title, "", {0.0: {}}, series, charts, tuple(claims), note)


def _recorded(data: Data, trace: str, tables: str) -> Spec:
    return {"type": "gavel", "path": data.trace(trace), "throughputs": tables}
