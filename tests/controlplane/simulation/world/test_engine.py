"""The virtual clock."""

import pytest

from controlplane.simulation.world.engine import Engine


def test_actions_run_in_the_order_of_their_times_and_then_of_their_coming() -> None:
    engine, seen = Engine(), list[tuple[float, str]]()
    for at_s, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        engine.at(at_s, lambda name=name: seen.append((engine.now_s, name)))  # type: ignore[misc]  # bound early
    engine.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]


def test_an_action_may_put_in_more_at_the_same_time() -> None:
    engine, seen = Engine(5.0), list[float]()
    engine.at(5.0, lambda: engine.after(0.0, lambda: seen.append(engine.now_s)))
    engine.run()
    assert seen == [5.0]


def test_a_run_ends_at_the_time_given_and_goes_on_later() -> None:
    engine, seen = Engine(), list[float]()
    for at_s in (1.0, 2.0, 3.0):
        engine.at(at_s, lambda: seen.append(engine.now_s))
    engine.run(until_s=2.0)
    assert seen == [1.0, 2.0]
    assert engine.step()
    assert not engine.step()
    assert seen == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("at_s", [0.9, float("nan")])
def test_nothing_can_be_put_into_the_past(at_s: float) -> None:
    with pytest.raises(ValueError, match="already"):
        Engine(1.0).at(at_s, lambda: None)
