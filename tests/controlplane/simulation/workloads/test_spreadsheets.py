"""CSV as spreadsheets and scripts of several countries write it."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.workloads import Workload, WorkloadError, load

PLAIN = "id,arrival_s,run_s,gpus\na,0,10.5,1\nb,2.5,20,2\n"
GERMAN = "id;arrival_s;run_s;gpus\na;0;10,5;1\nb;2,5;20;2\n"
TABS = "id\tarrival_s\trun_s\tgpus\na\t0\t10,5\t1\nb\t2.5\t20\t2\n"
QUOTED = '"id","arrival_s","run_s","gpus"\n"a","0","10.5","1"\n"b","2.5","20","2"\n'
PIPES = PLAIN.replace(",", "|")
TIMES = (
    "id,arrival_s,run_s,gpus\na,2026-05-01T13:00:00Z,10.5,1\nb,2026-05-01T15:00:02.500+02:00,20,2\n"
)
TEXTS = {
    "plain": PLAIN, "german": GERMAN, "tabs": TABS, "quoted": QUOTED, "pipes": PIPES,
    "times": TIMES,
}  # fmt: skip
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"]


def read(text: str, **fields: Any) -> Workload:
    return load({"type": "csv", "text": text, "speeds": {"V100": 1.0}, **fields}, 1)


def shown(workload: Workload) -> list[tuple[str, float, float, int]]:
    return [
        (job.id, job.arrival_s, job.remaining_steps / 1000, job.gpus_min) for job in workload.jobs
    ]


EXPECTED = [("a", 0.0, 10.5, 1), ("b", 2.5, 20.0, 2)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_same_table_is_read_in_every_form(name: str, ends: str) -> None:
    assert shown(read(TEXTS[name].replace("\n", ends))) == EXPECTED


@pytest.mark.parametrize("encoding", [e for e in ENCODINGS if e != "utf-16-be"])
@pytest.mark.parametrize("name", ["plain", "german"])
def test_file_of_any_encoding_is_read(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(TEXTS[name].encode(encoding))
    assert shown(load({"type": "csv", "path": str(path), "speeds": {"V": 1.0}}, 1)) == EXPECTED


def test_names_in_the_code_page_of_windows_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes("id;arrival_s;run_s;team\na;0;1;Gr\xfcn\n".encode("cp1252"))
    (job,) = load({"type": "csv", "path": str(path), "speeds": {"V": 1.0}}, 1).jobs
    assert job.team == "Gr\xfcn"


def test_text_with_a_byte_order_mark_is_read() -> None:
    assert shown(read("\ufeff" + PLAIN)) == EXPECTED


def test_due_dates_are_times_where_arrivals_are() -> None:
    text = (
        "arrival_s,run_s,due_s\n2026-05-01 13:00,60,2026-05-01T14:00\n"
        "2026-05-01 13:30,60,\n2026-05-01 13:40,60,2026-05-01T15:00\n"
    )
    workload = read(text)
    assert [job.due_s for job in workload.jobs] == [3600.0, float("inf"), 7200.0]


@pytest.mark.parametrize("due", ["7", "soon", "2026-13-01"])
def test_due_date_that_is_no_time_names_its_line(due: str) -> None:
    with pytest.raises(WorkloadError, match="line 2: due_s is not a time"):
        read(f"arrival_s,run_s,due_s\n2026-05-01,60,{due}\n")


@pytest.mark.parametrize("run", ["1,2,3", "1.2,3", "ten", "1,", "0x1"])
def test_odd_number_in_a_table_with_semicolons_is_refused(run: str) -> None:
    with pytest.raises(WorkloadError, match="line 2: run_s must be a number"):
        read(f"arrival_s;run_s\n0;{run}\n")


def test_thousands_with_points_and_a_decimal_comma_are_read() -> None:
    (job,) = read("arrival_s;run_s\n0;1.234,5\n").jobs
    assert job.remaining_steps == 1_234_500


def test_delimiter_may_be_named() -> None:
    assert shown(read(PLAIN.replace(",", ":"), delimiter=":")) == EXPECTED
    with pytest.raises(WorkloadError, match="delimiter: must be one character"):
        read(PLAIN, delimiter="::")
