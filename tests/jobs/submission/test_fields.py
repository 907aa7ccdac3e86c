"""Single fields: what they take, and what they say to what they do not take."""

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.submission import fields
from jobs.submission.fields import FieldError

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1.5h", 5400),
        (60, 60),
        ("1h 5s", 3605),
    ],
)
def test_a_duration_is_seconds_or_units(text: object, seconds: float) -> None:
    assert fields.duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "5", "soon", "-5m", 0, -1, float("nan"), float("inf"), True, "99999999d", [1]]
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(FieldError):
        fields.duration_s(text)


@pytest.mark.parametrize(
    ("given_", "range_"),
    [(2, (2, 2)), ("3", (3, 3)), ("1..4", (1, 4)), ("1-4", (1, 4)), (" 1 .. 4 ", (1, 4))],
)
def test_gpus_are_a_number_or_a_range(given_: object, range_: tuple[int, int]) -> None:
    assert fields.gpu_range(given_, most=16) == range_


@pytest.mark.parametrize(
    "wrong", ["0..2", -1, 1.5, True, "1..", "a..b", "1..99", [1, 2], float("nan")]
)
def test_what_is_no_number_of_gpus_is_refused(wrong: object) -> None:
    with pytest.raises(FieldError):
        fields.gpu_range(wrong, most=16)


def test_a_time_without_offset_is_read_in_the_clusters_zone() -> None:
    rome = fields.moment("2030-01-15T18:00", now=NOW, zone=ZoneInfo("Europe/Rome"))
    assert rome == datetime(2030, 1, 15, 17, tzinfo=UTC)
    assert fields.moment("2030-01-15T18:00Z", now=NOW, zone=ZoneInfo("Europe/Rome")) == datetime(
        2030, 1, 15, 18, tzinfo=UTC
    )


def test_a_time_may_count_from_now() -> None:
    assert fields.moment("+2h", now=NOW, zone=UTC) == datetime(2030, 1, 15, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong", ["tomorrow", "2h", "+", "+soon", 12, "0001-01-01T00:00", "9999-12-31T23:59", None]
)
def test_what_is_no_time_near_now_is_refused(wrong: object) -> None:
    with pytest.raises(FieldError):
        fields.moment(wrong, now=NOW, zone=ZoneInfo("Pacific/Auckland"))


def test_a_command_in_one_string_is_split_as_a_shell_would() -> None:
    assert fields.command("python train.py --name 'a b'") == ("python", "train.py", "--name", "a b")


@pytest.mark.parametrize(
    "wrong", ["python 'train", ["python", 3], {"a": 1}, ["a\0b"], ["\ud800"], "x" * 70_000, [" "]]
)
def test_what_is_no_command_is_refused(wrong: object) -> None:
    with pytest.raises(FieldError):
        fields.command(wrong)


def test_numbers_in_an_environment_become_text() -> None:
    assert fields.environment({"SEED": 1, "RATE": 0.5, "KEY": {"secret": "k"}}) == {
        "SEED": "1",
        "RATE": "0.5",
        "KEY": {"secret": "k"},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"1A": "x"},
        {"A-B": "x"},
        {"LOADMASTER_STEPS": "9"},
        {"A": True},
        {"A": {"secret": 1}},
        {"A": "\0"},
    ],
)
def test_what_is_no_variable_is_refused(wrong: object) -> None:
    with pytest.raises(FieldError):
        fields.environment(wrong)


def test_the_value_of_a_variable_is_never_repeated_in_an_error() -> None:
    with pytest.raises(FieldError) as raised:
        fields.environment({"PASSWORD": "hunter2\0"})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong", [["/a"], ["a:/b"], ["/a:/b:rx"], ["/a/../b:/c"], "/a:/b", ["/a:/b\n"], [3]]
)
def test_what_is_no_mount_is_refused(wrong: object) -> None:
    with pytest.raises(FieldError):
        fields.mounts(wrong)


@given(anything)
def test_every_reader_answers_anything_with_a_value_or_a_field_error(value: object) -> None:
    readers = (
        lambda v: fields.text(v, most=10),
        lambda v: fields.choice(v, ["a", "b"]),
        lambda v: fields.whole(v, least=0, most=9),
        lambda v: fields.number(v, least=0, most=9),
        fields.flag,
        lambda v: fields.words(v, pattern=fields.LABEL, what="labels"),
        fields.command,
        fields.environment,
        fields.mounts,
        lambda v: fields.gpu_range(v, most=9),
        fields.duration_s,
        lambda v: fields.moment(v, now=NOW, zone=UTC),
    )
    for reader in readers:
        with suppress(FieldError):
            reader(value)
