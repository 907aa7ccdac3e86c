"""PCP'20's evaluation again, at the least size."""

import json
from pathlib import Path

import pytest

from experiments.reproduce.pcp20.__main__ import Asked, options, reproduce
from experiments.reproduce.pcp20.scenarios import QUICK, Scale, cases, settings


def a_record(n: int) -> str:
    """Line of a log: submitted, run time, processors, requested time, user."""
    cores = 4 + 4 * (n % 3)
    run_s, walltime_s = 30 + 40 * (n % 5), 120 + 40 * n
    head = f"{n + 1} {20 * n} -1 {run_s} {cores} -1 -1 {cores} {walltime_s}"
    return f"{head} -1 1 {n % 3} -1 -1 -1 -1 -1 -1"


TINY = Scale("tiny", 12, 12, 12, 1, 3)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    (tmp_path / "hpc").mkdir()
    (tmp_path / "hpc/hpc2n-seth-slice.swf").write_text(
        "".join(f"{a_record(n)}\n" for n in range(30))
    )
    return Asked(TINY, tmp_path, tmp_path / "out", 1, ("seth", "kit"))


def test_all_dispatchers_are_there() -> None:
    assert all(case.dispatcher.is_there for case in cases(settings(QUICK)))


def test_a_reproduction_has_every_simulation_and_goes_on_where_it_stopped(asked: Asked) -> None:
    said: list[str] = []
    reproduce(asked, said.append)
    first = (asked.folder / "results.json").read_bytes()
    results = json.loads(first)
    labels = [(row["setting"], row["label"]) for row in results["rows"]]
    assert len(labels) == len(set(labels)) == 16
    assert all(row["wait_s"]["mean"] >= 0 for row in results["rows"])
    assert results["not_run"] == []
    one = next((asked.folder / "cells").glob("seth-easy-w-*.json"))
    one.unlink()
    said.clear()
    reproduce(asked, said.append)
    assert "cells: 16, 15 of them done before" in said
    assert (asked.folder / "results.json").read_bytes() == first
    assert "Seth" in (asked.folder / "report.html").read_text()


def test_unknown_settings_and_missing_logs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, told in (
        (["--settings", "etna"], "no such setting: etna"),
        (["--settings", "seth", "--data", str(tmp_path)], "has no hpc/hpc2n-seth-slice.swf"),
    ):
        with pytest.raises(SystemExit):
            options(arguments)
        assert told in capsys.readouterr().err
