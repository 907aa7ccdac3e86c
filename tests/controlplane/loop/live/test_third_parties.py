"""Third parties' policies on a live cluster: chosen like others, and whatever a broken one does,
what runs goes on.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from clusters.models import Cluster, Node
from controlplane.loop.live.world import Solve
from controlplane.operations.prometheus import StateCollector, exposition
from jobs.models import Job
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from policies.host import registry, third_parties
from policies.host.client import SolverProcess
from tests.builders import a_job, a_user
from tests.builders_jobs import api
from tests.builders_live import a_round, a_round_of_waiting_events, changes_of, devices_of, running
from tests.builders_third_party import BODIES, NEVER_IMPORTED, a_package, a_third_party

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).parents[4]
GUIDE = (ROOT / "docs" / "policies.md").read_text()
SIMULATOR = (ROOT / "docs" / "simulator.md").read_text()
HARMLESS = {"works", "prints", "tells_its_limit", "gives_a_gpu_twice"}
LATE = "runs_forever"
UNUSABLE = ("import_fails", "import_exits", "takes_a_list", "refuses_itself")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broken policies, and the guide's."""
    return the_guides_package(a_third_party(tmp_path_factory.mktemp("third_party")))


def blocks(kind: str, guide: str = GUIDE) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)


def the_guides_package(folder: Path) -> Path:
    """As `pip install -e .` leaves it: on the path, with the metadata of its pyproject.toml."""
    (project,), (module, *_) = blocks("toml"), blocks("python", SIMULATOR)
    told = tomllib.loads(project)
    (name,) = told["tool"]["setuptools"]["py-modules"]
    (folder / f"{name}.py").write_text(module)
    info = folder / f"{name}-{told['project']['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {told['project']['name']}\nVersion: 1.0\n"
    )
    points = told["project"]["entry-points"][registry.GROUP]
    (info / "entry_points.txt").write_text(
        f"[{registry.GROUP}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
    )
    return folder


@pytest.fixture(scope="module")
def _on_the_path(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        )
        yield
    third_parties.forget()


@pytest.fixture(scope="module")
def solve(_on_the_path: None) -> Iterator[Solve]:
    """In a child, as workers do."""
    with SolverProcess(timeout_s=60.0) as process:

        def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
            process.await_ready()
            process.timeout_s = 3.0 if policy == LATE else 60.0
            return process.solve(snapshot, policy, parameters)

        yield solve


@pytest.mark.parametrize(
    "policy",
    sorted({*BODIES, *UNUSABLE} - HARMLESS),
)
def test_whatever_a_broken_policy_does_what_runs_goes_on_and_the_next_policy_decides(
    cluster: Cluster, node: Node, solve: Solve, policy: str
) -> None:
    first = devices_of(node)[0]
    running(cluster, "old", node, first)
    a_job(cluster, name="new")
    Cluster.objects.filter(pk=cluster.pk).update(policy=policy)
    row = a_round(cluster, solve)
    assert (row.status, changes_of(row)) == ("kept", {"old": "keep"})
    assert row.message
    assert Job.objects.get(name="old").state == "running"
    assert a_round_of_waiting_events(cluster, solve) is None, (
        "its events are answered: nothing asks again and again"
    )
    Cluster.objects.filter(pk=cluster.pk).update(policy="fifo")
    assert changes_of(a_round(cluster, solve)) == {"old": "keep", "new": "start"}


def test_one_of_two_gangs_on_a_gpu_starts_and_the_other_is_named(
    cluster: Cluster, node: Node, solve: Solve
) -> None:
    jobs = {str(a_job(cluster, name=name).pk): name for name in ("a", "b")}
    Cluster.objects.filter(pk=cluster.pk).update(policy="gives_a_gpu_twice")
    row = a_round(cluster, solve)
    assert (row.status, changes_of(row)) == ("partial", {"a": "start"})
    assert [(jobs[r["job"]], r["code"]) for r in row.rejected] == [("b", "refused")]
    assert "device_slots" in row.rejected[0]["detail"]
    assert "left out" in row.message
    assert Job.objects.get(name="b").waiting_code == "refused"


def test_a_policy_with_three_faults_in_a_row_is_named_as_broken(
    cluster: Cluster, node: Node, solve: Solve, client: Client
) -> None:
    for name in ("a", "b"):
        a_job(cluster, name=name)
    Cluster.objects.filter(pk=cluster.pk).update(policy="gives_a_gpu_twice")
    client.force_login(a_user("ada"))
    for _ in range(2):
        row = a_round(cluster, solve)
    assert Cluster.objects.get(pk=cluster.pk).broken_policy == ""
    row = a_round(cluster, solve)
    named = "Policy gives_a_gpu_twice failed or broke a rule in the last 3 rounds: device_slots"
    for url in ("/rounds/", f"/rounds/{row.pk}/"):
        assert named in client.get(url).content.decode()
    of_rest = client.get(f"/api/v1/clusters/{cluster.name}/").json()
    assert of_rest["broken_policy"].startswith(named)
    metrics = exposition([StateCollector()]).decode()
    assert f'loadmaster_policy_broken{{cluster="{cluster.name}"}} 1.0' in metrics


def test_a_good_round_or_another_policy_ends_the_faults_in_a_row(
    cluster: Cluster, node: Node, solve: Solve
) -> None:
    for name in ("a", "b"):
        a_job(cluster, name=name)
    Cluster.objects.filter(pk=cluster.pk).update(policy="gives_a_gpu_twice")
    for _ in range(3):
        a_round(cluster, solve)
    broken = Cluster.objects.get(pk=cluster.pk)
    assert broken.broken_policy
    broken.policy = "fifo"
    assert broken.broken_policy == ""
    Cluster.objects.filter(pk=cluster.pk).update(policy="works")
    a_round(cluster, solve)
    assert Cluster.objects.get(pk=cluster.pk).policy_fault == {}


@pytest.fixture
def _few_listed(_on_the_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """List the guide's policy and those that cannot be chosen: each costs a process."""
    few = {"shortest", *UNUSABLE}
    points = [p for p in entry_points(group=registry.GROUP) if p.name in few]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


@pytest.mark.usefixtures("_few_listed")
def test_the_guides_policy_is_listed_chosen_by_rest_and_decides_live(
    cluster: Cluster, node: Node, solve: Solve
) -> None:
    operator = api(a_user("root", operator=True))
    listed = {p["name"]: p for p in operator.get("/api/v1/policies/").json()}
    assert (listed["shortest"]["third_party"], listed["shortest"]["error"]) == (
        True,
        None,
    )
    assert listed["shortest"]["parameters"]["properties"]["gpus"]["default"] == 1
    assert "nobodys_module" in listed["import_fails"]["error"]
    wanted = {"policy": "shortest", "policy_parameters": {"gpus": 2}}
    assert (
        operator.patch(f"/api/v1/clusters/{cluster.name}/", wanted, format="json").status_code
        == 200
    )
    job = a_job(cluster, name="mine")
    row = a_round(Cluster.objects.get(pk=cluster.pk), solve)
    assert (row.policy, row.status, changes_of(row)) == (
        "shortest",
        "applied",
        {"mine": "start"},
    ), row.message
    assert Job.objects.get(pk=job.pk).state == "starting"


@pytest.mark.usefixtures("_few_listed")
def test_a_broken_policy_cannot_be_chosen_and_does_not_spoil_the_pages(
    cluster: Cluster, admin_client: Any
) -> None:
    operator = api(a_user("root", operator=True))
    for name in UNUSABLE:
        answer = operator.patch(
            f"/api/v1/clusters/{cluster.name}/", {"policy": name}, format="json"
        )
        assert answer.status_code == 400, name
    assert Cluster.objects.get(pk=cluster.pk).policy == cluster.policy
    page = admin_client.get(f"/admin/clusters/cluster/{cluster.pk}/change/")
    assert page.status_code == 200
    assert "import_fails (cannot be used" in page.content.decode()


def test_one_whose_import_never_ends_keeps_no_page_and_no_answer(
    cluster: Cluster, admin_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(a_package(tmp_path, {"never_imported": NEVER_IMPORTED})))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(third_parties, "LIMIT_S", 0.5)
    operator = api(a_user("root", operator=True))
    listed = {p["name"]: p for p in operator.get("/api/v1/policies/").json()}
    assert "took more than 0.5 s" in listed["never_imported"]["error"]
    assert (
        operator.patch(
            f"/api/v1/clusters/{cluster.name}/", {"policy": "never_imported"}, format="json"
        ).status_code
        == 400
    )
    assert (
        "never_imported (cannot be used"
        in admin_client.get(f"/admin/clusters/cluster/{cluster.pk}/change/").content.decode()
    )
    for address in ("/what-if/", "/simulations/new/"):
        assert admin_client.get(address).status_code == 200, address


def test_the_stranger_neither_sees_nor_chooses_policies(cluster: Cluster, client: Any) -> None:
    assert client.get("/api/v1/policies/").status_code in (401, 403)
    answer = client.patch(
        f"/api/v1/clusters/{cluster.name}/", {"policy": "fifo"}, content_type="application/json"
    )
    assert answer.status_code in (401, 403)


@pytest.mark.usefixtures("_on_the_path")
def test_the_guides_commands_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = blocks("console")[-1].replace(" \\\n>  ", "")
    install, listing, schema, simulate = [line[2:] for line in typed.splitlines()]
    assert install == "pip install -e ."
    assert (listing, schema) == (
        "python -m policies list",
        "python -m policies schema --policy shortest",
    )
    (_, cluster, *_), (trace,) = blocks("yaml", SIMULATOR), blocks("csv", SIMULATOR)
    (tmp_path / "cluster.yaml").write_text(cluster)
    (tmp_path / "trace.csv").write_text(trace)
    monkeypatch.chdir(tmp_path)
    words = simulate.removeprefix("python manage.py simulate ").split()
    call_command("simulate", *words, "--processes", "0", stdout=StringIO(), stderr=StringIO())
    assert "shortest" in (tmp_path / "simulation" / "results.json").read_text()
