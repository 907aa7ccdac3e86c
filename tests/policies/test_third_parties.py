"""Policies of third parties, installed as pip installs them: a broken one is told as such, and
everybody else goes on.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from foundation.child_processes.limits import half_of_memory
from foundation.forms import FormError, cleaned
from policies.contract import plan_json
from policies.contract.plan import LAST_S, Placement, Plan, PlanStatus
from policies.contract.policy import PolicyError, PolicyParameterError, SolverFailedError
from policies.contract.snapshot import RankPlacement
from policies.host import registry, third_parties
from policies.host.client import SolverProcess
from tests.builders_policies import a_job, a_snapshot
from tests.builders_third_party import (
    BODIES,
    CANNOT_BE_LOADED,
    CANNOT_BE_MADE,
    NEVER_IMPORTED,
    a_package,
    a_third_party,
)

SNAPSHOT = a_snapshot(jobs=[a_job("a"), a_job("b")])

SAID = {
    "raises": "ValueError: no idea",
    "raises_nul": r"ValueError: no\? idea \?",
    "raises_unsayable": "Mute: it cannot say what is wrong",
    "exits": "ended without an answer",
    "returns_nothing": "the policy returned NoneType, not a Plan",
    "returns_a_number": "the policy returned int, not a Plan",
    "returns_no_placements": "the documented form: placements\\[0\\]: must be an object, not 1",
    "returns_nan": "objective: must be a finite number, not nan",
    "returns_objects": "must be plain JSON data.*",
    "returns_a_knot": "must be plain JSON data.*Circular",
    "returns_nul": "a text in it has a NUL character",
    "remembers_half_a_character": "must be plain JSON data.*surrogates not allowed",
    "talks_too_much": "message: must have at most 10000 characters",
    "wants_all_memory": "MemoryError: Unable to allocate",
    "ends_after_the_calendar": r"placements\[0\].until_s: must be >= 0 and <= 2.5.* not 1e\+300",
    "costs_more_than_there_is": r"placements\[0\].predicted_energy_cost: must be .* not 1e\+300",
}
"""By policy what its failure says. What breaks a rule is the loop's to refuse."""

FINE = {"works", "prints", "tells_its_limit", "gives_a_gpu_twice"}
LATE = "runs_forever"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_third_party(tmp_path_factory.mktemp("third_party"))


@pytest.fixture(scope="module")
def _on_the_path(folder: Path) -> Iterator[None]:
    """For this process, and for those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        )
        yield
    third_parties.forget()


@pytest.fixture(scope="module")
def solver(_on_the_path: None) -> Iterator[SolverProcess]:
    with SolverProcess(timeout_s=60.0) as process:
        yield process


def test_every_policy_of_the_package_is_spoken_of_below() -> None:
    assert SAID.keys() | FINE | {LATE} == BODIES.keys()


@pytest.mark.usefixtures("_on_the_path")
def test_all_are_listed_the_unusable_with_their_error() -> None:
    listed = {e.name: e for e in registry.entries()}
    assert listed["works"].summary == "It works."
    assert listed["works"].third_party
    assert all(listed[name].error is None for name in (*BODIES, *CANNOT_BE_MADE))
    assert all(listed[name].error is not None for name in CANNOT_BE_LOADED)
    assert all(listed[name].error is None for name in registry.BUILT_IN)


@pytest.mark.usefixtures("_on_the_path")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("import_fails", "cannot be loaded: ModuleNotFoundError: No module named 'nobodys_module'"),
        ("import_exits", "cannot be loaded: SystemExit: 1"),
        ("does_not_parse", "cannot be loaded: SyntaxError"),
        ("has_no_class", "is not a frozen dataclass"),
        ("may_change", "is not a frozen dataclass"),
        ("cannot_be_called", "is not a frozen dataclass"),
        (
            "takes_a_list",
            (
                "parameters that cannot be shown: TypeError: a: its default must be one of bool,"
                " int, float, str"
            ),
        ),
        ("needs_more", "cannot be made with these parameters: TypeError"),
        ("refuses_itself", "cannot be made with these parameters: OSError: no licence"),
    ],
)
def test_one_that_cannot_be_made_says_why(name: str, said: str) -> None:
    for ask in (registry.make, registry.check):
        with pytest.raises(PolicyError, match=said):
            ask(name)


@pytest.mark.usefixtures("_on_the_path")
def test_listing_showing_and_checking_imports_none_of_them_here(folder: Path) -> None:
    sys.modules.pop("third_works", None)
    registry.entries()
    registry.check("works", {"patience": 2})
    assert registry.schema("works")["properties"]["patience"]["default"] == 1.5
    assert registry.source_file("works") == str(folder / "third_works.py")
    with pytest.raises(PolicyParameterError, match="patience: must be >= 0"):
        registry.check("works", {"patience": -1})
    assert "third_works" not in sys.modules


@pytest.fixture
def _one_that_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(a_package(tmp_path, {"never_imported": NEVER_IMPORTED})))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(third_parties, "LIMIT_S", 0.5)
    yield
    third_parties.forget()


@pytest.mark.usefixtures("_one_that_is_never_imported")
def test_one_whose_import_never_ends_is_listed_with_that_and_keeps_nobody() -> None:
    said = (
        r"policy 'never_imported' \(third_never_imported:Policy\) cannot be loaded: it took more"
        r" than 0.5 s and was stopped"
    )
    listed = {e.name: e.error for e in registry.entries()}
    assert re.match(said, listed.pop("never_imported") or "")
    assert set(listed) == set(registry.BUILT_IN)
    for ask in (registry.check, registry.schema, registry.source_file):
        with pytest.raises(PolicyError, match=said):
            ask("never_imported")


@pytest.mark.usefixtures("_one_that_is_never_imported")
def test_a_failure_is_asked_about_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match="took more than"):
        registry.check("never_imported")
    monkeypatch.setattr(third_parties, "LIMIT_S", 300.0)
    (tmp_path / "third_never_imported.py").write_text("raise RuntimeError('now it says why')")
    with pytest.raises(PolicyError, match="took more than"):
        registry.check("never_imported")
    later = monotonic() + third_parties.KEPT_S + 1.0
    monkeypatch.setattr(third_parties, "monotonic", lambda: later)
    with pytest.raises(PolicyError, match="RuntimeError: now it says why"):
        registry.check("never_imported")


def test_the_list_of_another_process_has_them_too(tmp_path: Path) -> None:
    folder = a_third_party(tmp_path, "works", "import_exits")  # each costs a process
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "policies", "list"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=300,
    )
    lines = {line.split()[0]: line for line in ran.stdout.splitlines() if line and line[0] != " "}
    assert "It works." in lines["works"]
    assert "broken: policy 'import_exits'" in lines["import_exits"]
    assert lines.keys() >= registry.BUILT_IN.keys()


@pytest.mark.parametrize("name", SAID)
def test_one_that_fails_in_the_solver_is_told_and_the_next_request_is_answered(
    solver: SolverProcess, name: str
) -> None:
    with pytest.raises(PolicyError, match=SAID[name]):
        solver.solve(SNAPSHOT, name)
    assert solver.solve(SNAPSHOT, "works", {"patience": 2.0}).message == "patience 2.0"


@pytest.mark.parametrize("name", CANNOT_BE_LOADED)
def test_one_that_cannot_be_loaded_leaves_the_solver_as_it_was(
    solver: SolverProcess, name: str
) -> None:
    solver.solve(SNAPSHOT, "works")
    before = solver.pid
    with pytest.raises(PolicyError, match=r"cannot be loaded|not a frozen|cannot be shown"):
        solver.solve(SNAPSHOT, name)
    assert solver.solve(SNAPSHOT, "fifo").policy == "fifo"
    assert solver.pid == before


@pytest.mark.usefixtures("_on_the_path")
def test_one_that_runs_forever_is_stopped_at_the_limit_and_the_next_request_is_answered() -> None:
    with SolverProcess(timeout_s=2.0) as process:
        process.await_ready()
        with pytest.raises(SolverFailedError, match="runs_forever took more than 2 s"):
            process.solve(SNAPSHOT, LATE)
        process.timeout_s = 60.0
        assert process.solve(SNAPSHOT, "works").policy == "idle"


def test_what_a_policy_and_its_children_print_or_read_is_not_the_answers_nor_the_requests(
    solver: SolverProcess,
) -> None:
    for _ in range(2):
        assert solver.solve(SNAPSHOT, "prints").policy == "idle"


def test_a_solver_that_ran_out_of_memory_is_replaced_so_that_nobody_else_pays_for_it(
    solver: SolverProcess,
) -> None:
    solver.solve(SNAPSHOT, "works")
    before = solver.pid
    with pytest.raises(SolverFailedError):
        solver.solve(SNAPSHOT, "wants_all_memory")
    assert solver.pid is None
    solver.solve(SNAPSHOT, "works")
    assert solver.pid not in (None, before)


def test_a_solver_may_have_half_of_the_memory(solver: SolverProcess) -> None:
    assert int(solver.solve(SNAPSHOT, "tells_its_limit").message) == half_of_memory()


def test_an_answer_without_end_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import sys\nprint('{}', flush=True)\nsys.stdin.readline()\nwhile True:"
        " sys.stdout.write('x' * 65536)\n"
    )
    monkeypatch.setattr("foundation.child_processes.messages.LONGEST_MESSAGE", 1 << 20)
    with SolverProcess(60.0, [sys.executable, str(child)]) as process:
        with pytest.raises(SolverFailedError, match="its answer is longer than 1 MiB"):
            process.solve(SNAPSHOT, "fifo")
        assert process.pid is None


def test_figures_at_the_edge_of_what_can_be_kept_are_kept() -> None:
    def plan(**figures: Any) -> Plan:
        return Plan(
            "x", PlanStatus.HEURISTIC, (Placement("a", (RankPlacement("n", ("d",)),), **figures),)
        )

    def kept(plan: Plan) -> Plan:
        return plan_json.from_json(plan_json.to_json(plan))

    kept(plan(until_s=LAST_S, predicted_run_s=0.0, predicted_energy_cost=-0.5, steps_quota=1))
    for wrong in (
        {"until_s": -1.0},
        {"until_s": LAST_S + 1.0},
        {"predicted_run_s": 1e13},
        {"steps_quota": 2**63},
        {"copy": 2**31},
    ):
        with pytest.raises(FormError, match=r"placements\[0\]\.\w+: must be"):
            kept(plan(**wrong))


def test_a_text_that_can_be_kept_stays_as_it_is() -> None:
    assert cleaned("größe 模型 🚂") == "größe 模型 🚂"
    assert cleaned("a\0b\ud800c") == "a?b?c"
    assert cleaned("abcdef", 3) == "abc..."
