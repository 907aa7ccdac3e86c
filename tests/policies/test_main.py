"""The policies' command line, and the serving loop without a process around it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from policies.__main__ import main
from policies.contract import plan_json, snapshot_json
from policies.contract.snapshot import JobPhase, NodeRole
from policies.host import registry
from policies.host.serving import READY, answer, serve
from tests.builders_policies import a_job, a_node, a_profile_request, a_snapshot


@pytest.fixture
def snapshot_file(tmp_path: Path) -> str:
    nodes = [a_node("n1", gpus=1, name="armida-05"), a_node("p1", gpus=1, role=NodeRole.PROFILING)]
    jobs = [
        a_job("a"),
        a_job("b", due_s=1100.0, tardiness_weight=1.0),
        a_job("c", phase=JobPhase.PROFILING),
    ]
    path = tmp_path / "snapshot.json"
    path.write_bytes(a_snapshot(nodes, jobs, profiling=(a_profile_request("c"),)).canonical_bytes)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_list_names_every_policy_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(registry.names())


def test_schema_shows_one_policy_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    _, one, _ = run(capsys, "schema", "--policy", "priority")
    _, every, _ = run(capsys, "schema")
    assert json.loads(one) == json.loads(every)["priority"] == registry.schema("priority")


def test_solve_prints_a_table_with_places_and_reasons(
    capsys: pytest.CaptureFixture[str], snapshot_file: str
) -> None:
    status, out, err = run(
        capsys, "solve", "--policy", "randomized_greedy", "--snapshot", snapshot_file
    )
    assert (status, err) == (0, "")
    lines = [line.split()[:4] for line in out.splitlines()]
    assert ["b", "training", "armida-05:gpu0", "100"] in lines
    assert ["c", "profiling", "p1:gpu0"] in lines
    assert ["a", "waiting", "no_capacity", "b"] in lines
    assert out.splitlines()[-1].startswith("randomized_greedy: heuristic, objective")


def test_solve_prints_the_plans_form_on_demand(
    capsys: pytest.CaptureFixture[str], snapshot_file: str
) -> None:
    arguments = ("--policy", "randomized_greedy", "--parameters", '{"mode": "coded"}', "--json")
    status, out, _ = run(capsys, "solve", "--snapshot", snapshot_file, *arguments)
    plan = plan_json.from_json(json.loads(out))
    assert (status, sorted(p.job for p in plan.placements)) == (0, ["b", "c"])


def test_solve_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot_file: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(snapshot_file).read_text(encoding="utf-8")))
    assert run(capsys, "solve", "--policy", "fifo", "--snapshot", "-")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--policy", "lifo"), 1, "error: 'lifo': no such policy"),
        (("--policy", "fifo", "--parameters", '{"x": 1}'), 1, "error: x: no such parameter"),
        (
            ("--policy", "fifo", "--parameters", "[]"),
            2,
            "error: --parameters: must be a JSON object",
        ),
        (("--policy", "fifo", "--parameters", "{"), 2, "error: --parameters: is not JSON"),
        (("--policy", "fifo", "--snapshot", "/no/such/file"), 2, "error: [Errno 2] No such file"),
    ],
)
def test_solve_says_what_is_wrong_with_its_input(
    capsys: pytest.CaptureFixture[str],
    snapshot_file: str,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    found, out, err = run(capsys, "solve", "--snapshot", snapshot_file, *arguments)
    assert (found, out) == (status, "")
    assert err.startswith(message)


def a_request(**fields: Any) -> str:
    given = {
        "id": 7,
        "policy": "fifo",
        "snapshot": snapshot_json.to_json(a_snapshot(jobs=[a_job("a")])),
    }
    return json.dumps({**given, **fields})


def test_serve_says_it_is_ready_and_answers_each_line_in_turn() -> None:
    out = io.StringIO()
    serve([a_request(), a_request(id=8)], out)
    ready, first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (ready, first["id"], second["id"]) == (READY, 7, 8)
    assert plan_json.from_json(first["plan"]).policy == "fifo"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (a_request(policy="lifo"), "UnknownPolicyError"),
        (a_request(parameters={"x": 1}), "PolicyParameterError"),
        (a_request(snapshot={"version": 1}), "FormError"),
        (a_request(snapshot=None), "FormError"),
        ("not JSON", "JSONDecodeError"),
        ('{"id": 7}', "KeyError"),
    ],
)
def test_a_request_that_fails_is_answered_with_its_error(line: str, kind: str) -> None:
    assert answer(line)["error"]["type"] == kind
