"""Numbers and times as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.web.pages import formats
from controlplane.web.templatetags.loadmaster import signed_percent

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0, "0 s"), (0.043, "43 ms"), (0.9999, "1 s"), (45, "45 s"),
     (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min"),
     (273_600, "3 d 4 h"), (59.7, "1 min"), (3599.9, "1 h")],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float | None, words: str) -> None:
    assert formats.duration(seconds) == words


@pytest.mark.parametrize(
    ("due_s", "ended_s", "words", "tone"),
    [
        (750, None, "in 12 min", ""),
        (-200, None, "late by 3 min", "bad"),
        (-200, -400, "met", "good"),
        (-400, -200, "late by 3 min", "bad"),
    ],
)
def test_due_dates_count_from_now_or_from_the_end(
    due_s: float, ended_s: float | None, words: str, tone: str
) -> None:
    ended = None if ended_s is None else NOW + timedelta(seconds=ended_s)
    assert formats.due(NOW + timedelta(seconds=due_s), NOW, ended) == (words, tone)


def test_no_due_date_says_nothing() -> None:
    assert formats.due(None, NOW) == ("", "")


@pytest.mark.parametrize(
    ("number", "words"),
    [(None, ""), (0, "0"), (1234.5, "1,234"), (4.561, "4.56"), (0.012345, "0.0123"),
     (5.2, "5.2"), (-0.5, "-0.5"), (2e-9, "2e-09"),
     (0.00312, "0.00312"), (99.96, "100"), (20, "20")],
)  # fmt: skip
def test_quantities_have_three_digits_that_matter(number: float | None, words: str) -> None:
    assert formats.quantity(number) == words


def test_how_long_ago_something_was() -> None:
    assert formats.ago(None, NOW) == "never"
    assert formats.ago(NOW - timedelta(seconds=130), NOW) == "2 min ago"
    assert formats.ago(NOW + timedelta(seconds=5), NOW) == "0 s ago"


@pytest.mark.parametrize(
    ("share", "words"), [(0.5, "half of "), (0.25, "0.25 of "), (1.0, ""), (None, ""), ("x", "")]
)
def test_what_part_of_a_gpu_is_held_is_said_where_it_is_not_the_whole(
    share: object, words: str
) -> None:
    assert formats.part_of(share) == words


@pytest.mark.parametrize(
    ("fraction", "words"), [(0.034, "+3%"), (-0.12, "−12%"), (0.0, "+0%"), (-0.004, "+0%")]
)
def test_a_difference_that_rounds_to_nothing_is_not_below_it(fraction: float, words: str) -> None:
    assert signed_percent(fraction) == words


@pytest.mark.parametrize(
    ("number", "several", "words"),
    [(0, "", "0 jobs"), (1, "", "1 job"), (1234, "", "1,234 jobs"), (2, "people", "2 people")],
)
def test_a_number_stands_with_its_noun(number: int, several: str, words: str) -> None:
    assert formats.counted(number, "job", several) == words
