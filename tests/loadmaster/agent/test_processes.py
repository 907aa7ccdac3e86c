"""The agent with real processes: launched once, adopted, stopped, shipped."""

import functools
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadmaster.agent.__main__ import main
from loadmaster.agent.config import AgentConfig
from loadmaster.agent.loop import Agent
from loadmaster.agent.runtimes.base import RunId, RunState, StopBy, StopOrder
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.shipping import PIECE_BYTES
from loadmaster.agent.start import EXIT_CONFIG, EXIT_PROTOCOL, EXIT_TOKEN, serve
from loadmaster.files import write_json
from loadmaster.protocol import ReasonClass, StopReason
from tests.builders_agent import (
    ENROLMENT_TOKEN,
    NODE_TOKEN,
    FakeServer,
    a_spec,
    an_agent,
    python,
    until,
)
from tests.builders_processes import is_running

RUN = RunId("a1", 1)
SLEEPER = python("import time; print('up', flush=True); time.sleep(60)")
TRAINER = python(
    "import json,os,sys,time\nrun = os.environ['LOADMASTER_RUN_DIR']; place ="
    " os.environ['LOADMASTER_CHECKPOINT_DIR'] + '/step'\nstep = int(open(place).read()) if"
    " os.path.exists(place) else 0\ndef tell(event): print(json.dumps({'at_s': time.time(),"
    " 'event': event, 'step': step, 'launch_steps': 1, 'elapsed_s': 0.1}), file=open(run +"
    " '/progress.jsonl', 'a'))\nwhile step < 500:\n    time.sleep(0.02); step += 1;"
    " tell('progress')\n    if json.load(open(run + '/term.json'))['stop']:\n        open(place,"
    " 'w').write(str(step)); tell('preempted'); sys.exit(75)\n"
)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def agent(server: FakeServer, tmp_path: Path) -> Iterator[Agent]:
    agent = an_agent(server, tmp_path)
    yield agent
    agent.close()
    end_runs(tmp_path)


def end_runs(state_dir: Path) -> None:
    """Leave no process behind, whatever the test left running."""
    runtime = ProcessRuntime(state_dir / "runs")
    for run in runtime.list():
        if runtime.poll(run).state is RunState.RUNNING:
            runtime.stop(run, StopOrder(StopBy.CANCEL, 0.0))
            until(functools.partial(has_ended, runtime, run))


def has_ended(runtime: ProcessRuntime, run: RunId = RUN) -> bool:
    return runtime.poll(run).state is RunState.ENDED


def job_of(state_dir: Path, run: RunId = RUN) -> psutil.Process:
    path = state_dir / "runs" / run.name / "job.json"
    until(path.exists)
    return psutil.Process(json.loads(path.read_text())["pid"])


def test_a_job_runs_with_the_contract_and_nothing_of_the_agents(
    server: FakeServer, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_TOKEN", "the-agents-own")
    held = server.offer(
        a_spec(
            command=python("import json,os; print(json.dumps(dict(os.environ)))"),
            environment={"BATCH": "64"},
        )
    )
    until(lambda: agent.is_idle and held.reports, agent)
    found = json.loads(held.logs["stdout"])
    assert held.states == ["running", "succeeded"]
    assert (found["BATCH"], found["LOADMASTER_EMULATED_STEP_S"], found["CUDA_VISIBLE_DEVICES"]) == (
        "64",
        "0.05",
        "",
    )
    assert found["LOADMASTER_RUN_DIR"].endswith("lm-a1-1")
    assert "the-agents-own" not in held.logs["stdout"].decode()
    assert NODE_TOKEN not in held.logs["stdout"].decode()


def test_secrets_are_masked_in_logs_and_reasons(server: FakeServer, agent: Agent) -> None:
    code = (
        "import os,sys; print('it is', os.environ['KEY']); sys.exit('bad key ' + os.environ['KEY'])"
    )
    held = server.offer(a_spec(command=python(code), secrets={"KEY": "hunter2"}))
    until(lambda: agent.is_idle and held.reports, agent)
    assert held.logs["stdout"] == b"it is *******\n"
    assert b"hunter2" not in held.logs["stderr"]
    assert "bad key ***" in held.reports[-1].reason
    assert held.reports[-1].reason_class is ReasonClass.USER


def test_a_secret_written_in_two_parts_is_masked_and_offsets_stay_true(
    server: FakeServer, agent: Agent
) -> None:
    code = (
        "import time\nfor part in ('the hun', 'ter2 is', ' out'):\n print(part, end='',"
        " flush=True); time.sleep(0.4)"
    )
    held = server.offer(a_spec(command=python(code), secrets={"KEY": "hunter2"}))
    until(lambda: agent.is_idle and held.reports, agent)
    assert held.logs["stdout"] == b"the ******* is out"


def test_a_log_longer_than_a_piece_arrives_whole(server: FakeServer, agent: Agent) -> None:
    code = f"import sys\nfor i in range({PIECE_BYTES // 50}): print(f'{{i:099d}}')"
    held = server.offer(a_spec(command=python(code)))
    until(lambda: agent.is_idle and held.reports, agent)
    lines = held.logs["stdout"].decode().splitlines()
    assert [int(line) for line in lines] == list(range(PIECE_BYTES // 50))


def test_shipping_resumes_where_the_server_expects_it(server: FakeServer, tmp_path: Path) -> None:
    code = (
        "import time\nprint('first', flush=True); time.sleep(1.2); print('second', flush=True);"
        " time.sleep(0.2)"
    )
    held = server.offer(a_spec(command=python(code)))
    agent = an_agent(server, tmp_path)
    until(lambda: held.logs["stdout"] == b"first\n", agent)
    agent.close()
    (tmp_path / "runs/lm-a1-1/shipping.json").unlink(missing_ok=True)
    agent = an_agent(server, tmp_path)
    until(lambda: agent.is_idle and held.reports, agent)
    agent.close()
    assert held.logs["stdout"] == b"first\nsecond\n"


def test_a_preempted_job_saves_first_and_resumes(server: FakeServer, agent: Agent) -> None:
    held = server.offer(a_spec(command=TRAINER))
    until(lambda: held.progress, agent)
    server.stop("a1", StopReason.PREEMPT, grace_s=20.0)
    until(lambda: agent.is_idle, agent)
    assert held.states == ["running", "stopping", "preempted"]
    assert held.reports[-1].exit_code == 75
    again = server.offer(a_spec("a2", fence=2, command=TRAINER))
    until(lambda: again.progress, agent)
    assert again.progress[0].step == (held.reports[-1].steps or 0) + 1


def test_a_plain_program_that_is_preempted_gets_sigterm_after_half_its_grace(
    server: FakeServer, agent: Agent
) -> None:
    held = server.offer(a_spec(command=SLEEPER))
    until(lambda: b"up" in held.logs["stdout"], agent)
    server.stop("a1", StopReason.PREEMPT, grace_s=0.6)
    until(lambda: agent.is_idle, agent)
    assert (held.states[-1], held.reports[-1].exit_code) == ("preempted", -signal.SIGTERM)


def test_a_cancelled_job_takes_its_detached_children_along(
    server: FakeServer, agent: Agent, tmp_path: Path
) -> None:
    code = (
        "import os,signal,time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork():"
        " os._exit(0)\n    signal.signal(15, signal.SIG_IGN); open('pid',"
        " 'w').write(str(os.getpid())); print('up', flush=True)\ntime.sleep(60)\n"
    )
    held = server.offer(a_spec(command=python(code)))
    until(lambda: b"up" in held.logs["stdout"], agent)
    child = psutil.Process(int((tmp_path / "runs/lm-a1-1/work/pid").read_text()))
    server.stop("a1", StopReason.CANCEL, grace_s=0.5)
    until(lambda: agent.is_idle, agent)
    assert held.states[-1] == "cancelled"
    assert not is_running(child)


def test_a_job_over_its_memory_is_stopped(server: FakeServer, agent: Agent) -> None:
    code = "import time; hog = bytearray(120_000_000); print('up', flush=True); time.sleep(60)"
    held = server.offer(a_spec(command=python(code), memory_gb=0.08))
    until(lambda: agent.is_idle and held.reports, agent)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.OOM)


def test_a_command_that_does_not_exist_is_the_users_fault(server: FakeServer, agent: Agent) -> None:
    held = server.offer(a_spec(command=("no-such-program",)))
    until(lambda: agent.is_idle and held.reports, agent)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.USER)
    assert "no-such-program" in held.reports[-1].reason


def test_what_has_ended_leaves_no_folder_behind(
    server: FakeServer, agent: Agent, tmp_path: Path
) -> None:
    held = server.offer(a_spec(secrets={"KEY": "hunter2"}))
    until(lambda: agent.is_idle and held.reports, agent)
    until(lambda: not list((tmp_path / "runs").iterdir()))
    assert "hunter2" not in (tmp_path / "journal.jsonl").read_text()


def test_cpu_and_memory_of_the_jobs_processes_are_told(server: FakeServer, agent: Agent) -> None:
    held = server.offer(
        a_spec(command=python("import time; hog = bytearray(50_000_000); time.sleep(60)"))
    )
    until(
        lambda: any(sample.memory_gb > 0.05 for batch in held.batches for sample in batch.usage),
        agent,
    )


class TestServe:
    """How an agent ends that cannot go on."""

    def status(
        self,
        server: FakeServer,
        tmp_path: Path,
        token: str = ENROLMENT_TOKEN,
        emulate: Path | None = None,
    ) -> int:
        with server.serving() as address:
            leave = threading.Event()
            threading.Timer(5.0, leave.set).start()
            return serve(
                AgentConfig(address, tmp_path / "state", token=token, emulate=emulate, cgroups=()),
                leave,
            )

    def test_without_a_token_it_says_so(
        self, server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert self.status(server, tmp_path, token="") == EXIT_CONFIG
        assert "--token" in caplog.text

    def test_with_a_wrong_token_it_says_so(
        self, server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert self.status(server, tmp_path, token="used-up") == EXIT_TOKEN
        assert "enrol it anew" in caplog.text

    def test_at_a_server_of_another_version_it_says_so(
        self, server: FakeServer, tmp_path: Path
    ) -> None:
        server.faults["register"] = [(426, b"")]
        assert self.status(server, tmp_path) == EXIT_PROTOCOL

    def test_with_a_bad_emulation_it_names_the_field(
        self, server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "gpus.yaml").write_text("gpu_type: V100\ncount: -1\n")
        assert self.status(server, tmp_path, emulate=tmp_path / "gpus.yaml") == EXIT_CONFIG
        assert "count" in caplog.text

    @pytest.mark.parametrize(
        "content", [{"server": "http://other", "node": "n", "token": "t"}, {"node": "n"}]
    )
    def test_a_state_folder_of_another_server_is_refused(
        self,
        server: FakeServer,
        tmp_path: Path,
        content: dict[str, str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        (tmp_path / "state").mkdir()
        write_json(tmp_path / "state/node.json", dict(content))
        assert self.status(server, tmp_path) == EXIT_CONFIG
        assert "state" in caplog.text

    def test_registration_is_repeated_until_the_server_is_there(
        self, server: FakeServer, tmp_path: Path
    ) -> None:
        server.faults["register"] = [(503, b""), (200, b"no json")]
        server.faults["session"] = [(401, b"")]
        assert self.status(server, tmp_path) == EXIT_TOKEN
        assert len(server.registrations) == 1

    def test_bad_options_end_with_a_usage_status(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--server", "nonsense"]) == EXIT_CONFIG
        assert "--server" in capsys.readouterr().err
