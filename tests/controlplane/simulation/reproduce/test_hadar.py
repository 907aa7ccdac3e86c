from experiments.reproduce.hadar.__main__ import trace_tables


def a_row(policy: str, total_h: float) -> dict[str, object]:
    metrics = {"utilisation": 0.5, "part_of_rounds_changed": 0.25}
    hours = [1.0, 2.0, 3.0, 4.0, total_h]
    return {"policy": policy, "completed_h": hours, "metrics": metrics}


def test_ratios_stand_beside_those_of_the_paper() -> None:
    text = "\n".join(trace_tables("a.trace", [a_row("hadar", 20.0), a_row("tiresias", 30.0)]))
    assert "| 1.50, 1.35 | 1.00, 1.4 |" in text
    assert "25.0% |" in text
