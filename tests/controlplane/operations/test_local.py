"""Starting the embedded default: its order, and when the local agents count as being in."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_django import Settings

from clusters.models import Node
from controlplane.execution.services.sessions import open_session
from controlplane.operations.bootstrap import CLUSTER, EMULATED_NODES
from controlplane.operations.embedded import local, programs
from controlplane.operations.embedded.local import Local, _agent, running_locally
from controlplane.operations.embedded.supervisor import Program, python
from tests.builders import a_cluster
from tests.builders_agents import a_node_with_agent, a_session_request

pytestmark = pytest.mark.django_db(transaction=True)

VOLTA = EMULATED_NODES[0]


@pytest.mark.parametrize("state", ["ready", "cordoned", "draining", "lost"])
def test_a_second_start_waits_for_a_new_session_whatever_state_the_node_was_left_in(
    tmp_path: Path, state: str
) -> None:
    node = a_node_with_agent(a_cluster(name=CLUSTER), name=VOLTA.name)
    Node.objects.update(state=state)
    program = _agent(VOLTA, tmp_path, 8000)
    assert not program.ready(), "the session of the first start is no sign of this one's agent"
    open_session(node.pk, a_session_request(node))
    assert program.ready()


def test_a_first_start_hands_the_agent_a_token_and_sets_the_watts_of_the_node_that_comes_in(
    tmp_path: Path,
) -> None:
    cluster = a_cluster(name=CLUSTER)
    program = _agent(VOLTA, tmp_path, 8000)
    assert (tmp_path / "agents" / "volta.token").stat().st_size > 0
    assert not program.ready()
    a_node_with_agent(cluster, name=VOLTA.name, base_w=Node._meta.get_field("base_w").default)
    assert program.ready()
    assert Node.objects.get().base_w == VOLTA.base_w


def test_pages_are_announced_before_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.LOADMASTER_HOME = tmp_path
    settings.STATIC_ROOT = tmp_path
    settings.REDIS_URL = "redis://not-started-here"
    steps: list[str] = []

    def sleeper(name: str) -> Program:
        steps.append(name)
        return Program(name, python("-c", "import time; time.sleep(600)"))

    @contextmanager
    def slow_compiler() -> Iterator[subprocess.Popen[bytes]]:
        steps.append("compiler")
        with subprocess.Popen(python("-c", "import time; time.sleep(1)")) as child:
            yield child

    monkeypatch.setattr(programs, "web", lambda port: sleeper("web"))
    monkeypatch.setattr(programs, "worker", lambda home: sleeper("worker"))
    monkeypatch.setattr(programs, "beat", lambda: sleeper("beat"))
    monkeypatch.setattr(local, "_compiling_kernels", slow_compiler)
    monkeypatch.setattr(local, "_collect_static_files", lambda: None)

    def on_pages(ready: Local) -> None:
        assert ready.password
        steps.append("pages")

    with running_locally(31_900, steps.append, nodes=(), on_pages=on_pages):
        pass
    assert steps[0] == "Preparing the database ..."
    names = [step for step in steps if " " not in step]
    assert names == ["web", "pages", "compiler", "worker", "beat"]
    compiling = [step for step in steps if step.startswith("Compiling the policies' kernels")]
    assert len(compiling) == 1
