"""Property tests draw more examples by night."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import multiply_examples


def test_a_property_test_draws_ten_times_its_examples() -> None:
    drawn: list[int] = []

    @settings(max_examples=3, database=None)
    @given(st.integers())
    def check(number: int) -> None:
        drawn.append(number)

    check()
    few = len(drawn)
    drawn.clear()
    multiply_examples(check, 10)
    check()
    assert (few, len(drawn)) == (3, 30)
