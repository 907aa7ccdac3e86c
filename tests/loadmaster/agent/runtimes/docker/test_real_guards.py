"""Guards in containers by a real Engine: leases, limits, and their ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.guarding.guard_output import FREED_AT_ONCE, MARGIN
from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.runtimes.base import (
    Limits,
    RunState,
    StopBy,
    StopOrder,
    Warned,
)
from loadmaster.files import write_json
from loadmaster.protocol import ReasonClass
from tests.builders_agent import until
from tests.builders_disks import small_disk
from tests.builders_docker import (
    BASE,
    Site,
    a_docker_spec,
    an_api,
    an_image,
    an_image_without_python,
    boot_s,
    python3,
    remove_image,
    sh,
)
from tests.loadmaster.agent.runtimes.docker.test_real_engine import SLEEPER, STUBBORN

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]
MB = 1_000_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.clear()


@pytest.fixture(scope="module")
def without_python() -> Iterator[str]:
    name = an_image_without_python()
    yield name
    remove_image(name)


def test_a_preempted_job_is_asked_by_its_term_file_first(site: Site) -> None:
    code = (
        "import json,os,signal,sys,time\nsignal.signal(15, signal.SIG_IGN); print('up',"
        " flush=True)\nwhile not json.load(open(os.environ['LOADMASTER_RUN_DIR'] +"
        " '/term.json'))['stop']: time.sleep(0.05)\nsys.exit(75)"
    )
    run = site.launch(a_docker_spec(command=python3(code)))
    site.says(run, "up")
    site.runtime.stop(run, StopOrder(StopBy.PREEMPT, 30.0))
    ended = site.end(run)
    assert (ended.exit_code, ended.stopped_by, ended.killed) == (75, StopBy.PREEMPT, False)


@pytest.mark.parametrize("image", ["python", "sh"])
def test_a_job_that_ignores_sigterm_is_killed(site: Site, without_python: str, image: str) -> None:
    run = site.launch(
        a_docker_spec(command=STUBBORN, image=BASE if image == "python" else without_python)
    )
    site.says(run, "up")
    site.runtime.stop(run, StopOrder(StopBy.CANCEL, 1.0))
    ended = site.end(run)
    assert (ended.stopped_by, ended.killed, ended.exit_code) == (
        StopBy.CANCEL,
        True,
        -9 if image == "python" else 137,
    )
    assert outcome_of(ended).reason_class is ReasonClass.OPERATOR


@pytest.mark.parametrize("image", ["python", "sh"])
def test_nothing_runs_past_its_lease(site: Site, without_python: str, image: str) -> None:
    run = site.launch(
        a_docker_spec(command=STUBBORN, image=BASE if image == "python" else without_python),
        lease_s=10.0,
    )
    site.says(run, "up")
    ended = site.end(run)
    assert (ended.started, ended.stopped_by, ended.killed) == (True, StopBy.LEASE, True)


@pytest.mark.parametrize("image", ["python", "sh"])
@pytest.mark.parametrize("limit", ["walltime_s", "deadline_s"])
def test_nothing_runs_past_its_walltime_or_its_deadline(
    site: Site, without_python: str, image: str, limit: str
) -> None:
    name = BASE if image == "python" else without_python
    at_s = 2.0 if limit == "walltime_s" else time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0
    spec = a_docker_spec(command=STUBBORN, image=name)
    run = site.launch(
        spec, grace_s=1.0, limits=Limits(at_s) if limit == "walltime_s" else Limits(deadline_s=at_s)
    )
    ended = site.end(run)
    assert (ended.stopped_by, ended.killed) == (StopBy(limit.removesuffix("_s")), True)
    assert outcome_of(ended).reason_class is ReasonClass.LIMIT


@pytest.mark.parametrize("image", ["python", "sh"])
@pytest.mark.parametrize("to", ["first", "all"])
def test_a_signal_comes_before_the_end_to_those_whom_it_is_for(
    site: Site, without_python: str, image: str, to: str
) -> None:
    name = BASE if image == "python" else without_python
    child = "sh -c 'trap \"echo child; exit\" USR1; while :; do sleep 0.1; done' &"
    script = f"trap 'sleep 1; echo first; exit 7' USR1; {child} while :; do sleep 0.1; done"
    limits = Limits(8.0, signal=Warned(signal.SIGUSR1, 5.0, to))
    run = site.launch(a_docker_spec(command=sh(script), image=name), limits=limits)
    ended = site.end(run)
    assert (ended.stopped_by, ended.exit_code) == (None, 7)
    told = {"first": ["first"], "all": ["child", "first"]}[to]
    assert sorted(site.output(run).split()) == told


def test_a_renewed_lease_lets_a_job_go_on(site: Site) -> None:
    run = site.launch(a_docker_spec(command=sh("echo up; sleep 4; echo done")), lease_s=3.0)
    site.runtime.renew(run, boot_s() + 60)
    assert site.end(run).exit_code == 0
    assert site.output(run) == "up\ndone\n"


def test_an_image_without_python_is_guarded_by_its_shell(site: Site, without_python: str) -> None:
    script = 'echo "$KEY|$1|$HOME"; id -u; echo err >&2; ls /loadmaster/guard; exit 5'
    spec = a_docker_spec(
        image=without_python,
        command=(*sh(script), "x", "it's 'two\nlines'"),
        secrets={"KEY": "a'b\"c$HOME"},
    )
    run = site.launch(spec)
    ended = site.end(run)
    assert (ended.started, ended.exit_code, ended.stopped_by) == (True, 5, None)
    assert site.output(run).startswith("a'b\"c$HOME|it's 'two\nlines'|/loadmaster/work\n1000\n")
    assert site.output(run, "stderr") == "err\n"
    assert (site.runtime.folder(run) / "guard" / "launch.sh").read_bytes() == b""
    assert (site.runtime.folder(run) / "guard" / "launch.json").read_bytes() == b""


@pytest.mark.parametrize("image", ["python", "sh"])
def test_a_flood_holds_little_room_and_its_ends_to_the_byte(
    site: Site, without_python: str, image: str
) -> None:
    lines = "awk 'BEGIN { for (n = 0; n < %d; n++) printf \"%%099d\\n\", n }'"
    script = f"{lines % 600_000}; while [ ! -e /loadmaster/work/go ]; do sleep 0.1; done"
    name = BASE if image == "python" else without_python
    ends = {"log_head_bytes": MB, "log_tail_bytes": 3 * MB}
    run = site.launch(a_docker_spec(command=sh(script), image=name, **ends))
    path = site.runtime.stream(run, "stdout")
    until(lambda: path.exists() and path.stat().st_size == 60 * MB, within_s=60)
    most = 4 * MB + MARGIN + FREED_AT_ONCE + MB
    until(lambda: path.stat().st_blocks * 512 <= most)
    (site.runtime.folder(run) / "work" / "go").touch()
    assert site.end(run).exit_code == 0
    content = path.read_bytes()
    whole = b"".join(b"%099d\n" % number for number in range(600_000))
    assert (content[:MB], content[-3 * MB :]) == (whole[:MB], whole[-3 * MB :])


@pytest.mark.root
@pytest.mark.parametrize("image", ["python", "sh"])
def test_a_full_disk_loses_output_and_neither_the_job_nor_its_end(
    tmp_path: Path, without_python: str, image: str
) -> None:
    script = "echo up; sleep 3; for n in $(seq 3000); do echo $n || exit 9; done; exit 5"
    name = BASE if image == "python" else without_python
    with small_disk(tmp_path, 32) as disk:
        site = Site(disk.folder / "agent")
        run = site.launch(a_docker_spec(command=sh(script), image=name))
        site.says(run, "up")
        disk.fill()
        ended = site.end(run)
        site.clear()
    assert (ended.started, ended.exit_code, ended.stopped_by) == (True, 5, None)


def test_an_image_that_can_run_no_guard_is_refused_with_the_remedy(site: Site) -> None:
    name = an_image({"only": b"nothing"})
    try:
        ended = site.end(site.prepare(a_docker_spec(image=name)))
        assert outcome_of(ended).reason_class is ReasonClass.IMAGE
        assert "neither /bin/sh nor" in ended.error
        assert "add one" in ended.error
    finally:
        remove_image(name)


def test_a_job_cannot_end_its_own_guard_and_a_forged_end_does_not_count(site: Site) -> None:
    forged = '{"ended_at_s": 1.0, "started": true, "exit_code": 0, "stopped_by": null}'
    script = (
        f"kill -9 1; kill -STOP 1; echo '{forged}' > /loadmaster/guard/exit.json; echo up; exec"
        " sleep 60"
    )
    run = site.launch(a_docker_spec(command=sh(script)), lease_s=4.0)
    site.says(run, "up")
    assert site.runtime.poll(run).state is RunState.RUNNING
    assert site.end(run).stopped_by is StopBy.LEASE


def test_a_guard_outlives_its_agent_that_is_killed_and_ends_the_job_with_its_lease(
    tmp_path: Path, site: Site
) -> None:
    """The agent's part is played by a process of its own, which is killed with -9 right after the
    start.
    """
    run = site.prepare(a_docker_spec(command=STUBBORN))
    site.runtime.close()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from loadmaster.agent.guarding import guard_orders\n"
        "from loadmaster.agent.runtimes.base import RunId\n"
        "from loadmaster.agent.runtimes.docker import DockerEngine, DockerOptions, DockerRuntime\n"
        f"folder, owner = Path({str(tmp_path / 'runs')!r}), {site.owner!r}\n"
        "options = DockerOptions(network='none', pull='never')\n"
        "runtime = DockerRuntime(folder, DockerEngine(), owner, options)\n"
        f"run = RunId({run.assignment!r}, 1)\n"
        "while runtime.poll(run).state.value == 'preparing': time.sleep(0.05)\n"
        "runtime.start(run, guard_orders.boot_s() + 4)\n"
        "while not runtime.read(run, 'stdout', 0, 10): time.sleep(0.05)\n"
        "print('started', flush=True); time.sleep(60)\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"started\n"
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    agent.stdout.close()
    with an_api() as api:
        until(lambda: api.inspect_container(run.name)["State"]["Status"] == "exited", within_s=30)
    site.runtime = site.another()
    assert site.end(run).stopped_by is StopBy.LEASE


def test_what_its_guard_does_not_end_the_agent_does(site: Site) -> None:
    """An image's own shell could be a guard that never stops; the agent trusts the Engine alone."""
    run = site.prepare(a_docker_spec(command=SLEEPER))
    folder = site.runtime.folder(run)
    (folder / "bin" / "guard.sh").write_text(
        "echo up > /loadmaster/guard/stdout.log; exec sleep 600"
    )
    site.runtime.start(run, boot_s() + 60)
    site.says(run, "up")
    write_json(
        folder / "run" / "stop.json", {"by": "cancel", "term_at_s": 0.0, "kill_at_s": boot_s()}
    )
    until(lambda: site.inspect(run)["State"]["Status"] == "exited", within_s=30)
    assert site.inspect(run)["State"]["ExitCode"] == 137
