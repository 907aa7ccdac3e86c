"""Values of Slurm's options."""

import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.options import values
from loadmaster.slurm.options.values import ValueFormatError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-0", 172_800), ("1-12", 129_600),
        ("1-12:30", 131_400), ("1-00:00:01", 86_401), ("0", None), ("UNLIMITED", None),
        ("infinite", None), ("0:0", None),
    ],
)  # fmt: skip
def test_a_time_is_read_as_slurm_reads_it(text: str, seconds: float | None) -> None:
    assert values.time_s(text) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_days_hours_minutes_and_seconds_add_up(d: int, h: int, m: int, s: int) -> None:
    total = ((d * 24 + h) * 60 + m) * 60 + s
    assert values.time_s(f"{d}-{h:02d}:{m:02d}:{s:02d}") == (total or None)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("500", 500 * 2**20), ("500M", 500 * 2**20), ("4g", 4 * 2**30), ("2GB", 2 * 2**31 // 2),
     ("1T", 2**40), ("2048K", 2**21), ("0", 0)],
)  # fmt: skip
def test_memory_has_units_of_1024(text: str, bytes_: int) -> None:
    assert values.memory_gb(text) == pytest.approx(bytes_ / 1e9)


def test_nodes_may_be_a_range() -> None:
    assert (values.nodes("2"), values.nodes("2-4")) == ((2, 2), (2, 4))


def test_gpus_and_other_resources_are_told_apart() -> None:
    assert values.gpus("2") == (2, [])
    assert values.gpus("V100:2,T4:1") == (3, ["V100", "T4"])
    assert values.gres("gpu:V100:2,mic:1,gpu") == (3, ["V100"], {"mic": 1})
    assert values.gres("none") == (0, [], {})


def test_dependencies_are_listed_one_by_one() -> None:
    assert values.dependencies("afterok:1:2_3,afterany:4") == [
        "afterok:1", "afterok:2_3", "afterany:4",
    ]  # fmt: skip


def test_a_start_is_waited_for_with_minutes_of_its_own() -> None:
    found = values.dependencies("after:1:2+10,after:3_4+05")
    assert found == ["after:1", "after:2+10", "after:3_4+5"]


def test_dependencies_of_which_one_suffices_are_one_text() -> None:
    assert values.dependencies("afterok:1:2?afterany:3") == ["afterok:1?afterok:2?afterany:3"]
    assert values.dependencies("1?2") == ["afterany:1?afterany:2"]


def test_what_is_exported_is_all_or_some_or_given() -> None:
    found = values.exported("ALL,A,B=1")
    assert (found.all, found.names, dict(found.values)) == (True, frozenset("A"), {"B": "1"})
    assert values.exported("NONE") == values.Exported()


@pytest.mark.parametrize(
    ("text", "plain"),
    [("USR1", "USR1@60"), ("b:sigint@5", "B:INT@5"), ("10@0", "USR1@0"), ("B:15", "B:TERM@60")],
)
def test_a_signal_has_a_name_and_the_seconds_before_the_end(text: str, plain: str) -> None:
    wanted = values.end_signal(text)
    assert str(wanted) == plain
    assert values.end_signal(plain) == wanted
    assert wanted.number == signal.Signals[f"SIG{wanted.name}"]


@pytest.mark.parametrize(
    ("reader", "texts"),
    [
        (values.time_s, ["", "soon", "1:2:3:4", "-5", "5m", "1d", "1:", ":30", "+5", "9" * 40]),
        (values.memory_gb, ["", "much", "-1", "1.5G", "1P"]),
        (values.count, ["", "0", "-1", "1.5", "x", "9" * 12]),
        (values.nodes, ["3-1", "a", "1-", "-2"]),
        (values.gpus, ["V100:", "1,", ":2", "A40:x", "-1"]),
        (values.gres, ["", "2", "gpu:", "mic:-1", "gpu:A40:2x", "gpu::1", "gpu:1;"]),
        (
            values.dependencies,
            [
                "after:1+",
                "after:1+x",
                "afterok:1+5",
                "afterok",
                "afterok:",
                "afterok:1?afterok:2,afterok:3",
                "afterok:1?",
                "none",
                "afterok:1,",
                ",afterok:1",
                "afterok:1::2",
                "afterok:$X",
                "afterok:1 afterok:2",
                "before:1",
                "afterok:1_[3-1]",
            ],
        ),
        (
            values.end_signal,
            [
                "",
                "B:",
                "@5",
                "USR3",
                "0",
                "99",
                "USR1@70000",
                "USR1@-1",
                "C:USR1",
                "B:B:USR1",
                "BUS",
                "TERM@1:00",
                "USR1@x",
            ],
        ),
    ],
)
def test_a_bad_value_is_refused(reader: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueFormatError):
            reader(text)
