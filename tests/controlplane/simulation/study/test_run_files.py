from pathlib import Path

import numpy as np
import pytest

from controlplane.simulation.study.run_files import JOB_COLUMNS, load, replacing, save, write_text
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.outcome import Unplaceable
from tests.builders_outcomes import a_finished_run, an_outcome


def test_a_run_comes_back_as_it_was_but_for_its_timings(tmp_path: Path) -> None:
    outcome = an_outcome(
        switches=Switches(restart_cost_s=3.0),
        unplaceable=(Unplaceable(2, "c", "too large"),),
        unfinished=(Unplaceable(1, "b", "left waiting"),),
        unfinished_cost=0.7,
    )
    before = a_finished_run(outcome, skipped=((3, "no number"),))
    save(tmp_path / "run.npz", before)
    after = load(tmp_path / "run.npz")
    assert after is not None
    assert (after.workload, after.job_kinds) == (before.workload, before.job_kinds)
    for name in JOB_COLUMNS:
        assert np.array_equal(getattr(after.outcome, name), getattr(outcome, name), equal_nan=True)
    for name in (
        "policy",
        "seed",
        "switches",
        "job_ids",
        "nodes",
        "rounds",
        "makespan_s",
        "energy_cost",
        "unplaceable",
        "unfinished",
        "unfinished_cost",
    ):
        assert getattr(after.outcome, name) == getattr(outcome, name)
    assert after.outcome.stays.devices == outcome.stays.devices
    assert after.outcome.stays.end_s.tolist() == [200.0, 350.0]
    assert after.outcome.utilisation.gpus_in_use.tolist() == [1, 0]
    assert len(after.outcome.decision_s) == 0


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", a_finished_run())
    save(tmp_path / "b.npz", a_finished_run(an_outcome(decision_s=np.array([9.0]))))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_file_that_is_none_or_broken_is_no_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK not really")
    assert load(broken) is None
    assert load(tmp_path / "none.npz") is None


def test_a_file_with_a_wrong_byte_anywhere_is_read_or_no_run(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    save(path, a_finished_run())
    whole = path.read_bytes()
    found = []
    for at in range(0, len(whole), 29):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        found.append(load(path))
    assert None in found


def write_half(path: Path) -> None:
    with replacing(path) as part:
        part.write_text("half of the n")
        raise OSError("the disk is full")


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "old")
    with pytest.raises(OSError, match="full"):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
