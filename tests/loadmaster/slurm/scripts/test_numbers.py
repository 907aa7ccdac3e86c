"""Numbers of jobs."""

import pytest

from loadmaster.slurm.scripts.numbers import MOST_NUMBER, read_number


@pytest.mark.parametrize("number", [1, 12, 700_001, MOST_NUMBER])
def test_a_number_is_read_from_its_digits(number: int) -> None:
    assert read_number(str(number)) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "x", "9" * 8, "9" * 30, "\u0661", " 1"])
def test_other_texts_are_the_number_of_no_job(text: str) -> None:
    assert read_number(text) is None


def test_the_greatest_number_is_below_two_to_the_26() -> None:
    assert MOST_NUMBER == 67_108_863
