"""Isolated jobs: they are run, stopped, adopted and refused as any other."""

import json
import os
import shutil
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.runtimes.base import (
    Limits,
    RunState,
    StopBy,
    StopOrder,
    Warned,
)
from loadmaster.agent.runtimes.isolation import SHM
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.protocol import ReasonClass, StopReason
from tests.builders_agent import FakeServer, a_spec, an_agent, python, until
from tests.builders_gangs import free_port, gang_job
from tests.builders_isolation import (
    BUBBLEWRAP,
    IS_ROOT,
    SLEEP,
    USERS,
    Site,
    a_site,
    an_isolation,
    job_processes,
)
from tests.builders_processes import is_running
from tests.loadmaster.agent.test_processes import TRAINER


class TestItsLife:
    """Started, stopped and adopted as any other."""

    def test_exit_code_of_the_job_is_that_of_the_run(self, any_site: Site) -> None:
        ends = [any_site.start(f"a{code}", command=python(f"exit({code})")) for code in (0, 75, 1)]
        codes = [end.exit_code for run in ends if (end := any_site.end_of(run).exit)]
        assert codes == [0, 75, 1]

    def test_a_command_that_is_not_there_is_the_users_error(self, site: Site) -> None:
        end = site.end_of(site.start(command=("no-such-command",))).exit
        assert end
        assert not end.started
        assert end.error.startswith("the command cannot be started: no-such-command")

    def test_a_stop_reaches_the_job_which_leaves_by_itself(self, any_site: Site) -> None:
        code = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(75)))\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        run = any_site.start(command=python(code))
        until(lambda: any_site.text(run))
        any_site.runtime.stop(run, StopOrder(StopBy.CANCEL, 10.0))
        end = any_site.end_of(run).exit
        assert end
        assert (end.exit_code, end.stopped_by, end.killed) == (75, StopBy.CANCEL, False)
        assert "saved" in any_site.text(run)

    def test_a_job_that_does_not_leave_is_killed_with_all_that_it_started(
        self, any_site: Site
    ) -> None:
        code = (
            "import signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "subprocess.Popen(['setsid', 'sleep', '77'])\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        run = any_site.start(command=python(code))
        until(lambda: any_site.text(run))
        below = job_processes(any_site, run)
        any_site.runtime.stop(run, StopOrder(StopBy.CANCEL, 0.3))
        end = any_site.end_of(run).exit
        assert end
        assert end.killed
        assert len(below) >= 2
        assert not [process for process in below if is_running(process)]

    @pytest.mark.parametrize("escape", ["pass", "os.setsid()"])
    def test_a_job_that_goes_on_by_forking_is_ended_and_no_other_of_its_team(
        self, any_site: Site, escape: str
    ) -> None:
        code = (
            "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('up', flush=True)\nwhile True:\n    open('alive', 'w').close()\n"
            f"    if os.fork(): os._exit(0)\n    {escape}\n"
        )
        other = any_site.start("other", command=SLEEP)
        until(lambda: any_site.text(other))
        run = any_site.start(command=python(code), lease_s=2.0)
        any_site.end_of(run)
        alive = any_site.runtime.folder(run) / "work" / "alive"
        alive.unlink()
        time.sleep(0.3)
        assert not alive.exists()
        assert {p.status() for p in job_processes(any_site, other)} == {psutil.STATUS_SLEEPING}

    def test_progress_that_a_job_has_closed_to_its_agent_counts_as_none(
        self, any_site: Site
    ) -> None:
        closes = 'chmod 0 "$LOADMASTER_RUN_DIR/progress.jsonl" && echo closed'
        run = any_site.start(command=("/bin/sh", "-c", closes))
        assert any_site.says(run) == "closed\n"
        assert any_site.runtime.read(run, "progress", 0, 100) == b""
        assert any_site.runtime.size(run, "progress") == 0

    def test_shared_memory_of_a_user_is_freed_once_no_job_of_it_is_left(
        self, any_site: Site
    ) -> None:
        """In a sandbox it is the job's own, and nothing of it is seen outside."""
        left, others = (Path(SHM, f"{any_site.state.parent.name}-{whose}") for whose in "ab")
        others.touch()
        try:
            other = any_site.start("other", command=SLEEP)
            until(lambda: any_site.text(other))
            assert any_site.runs(f"open({str(left)!r}, 'w').write('x')") == ""
            assert left.exists() is (any_site.isolation.program == "")
            any_site.runtime.stop(other, StopOrder(StopBy.CANCEL, 1.0))
            any_site.end_of(other)
            assert not left.exists()
            assert others.exists()
        finally:
            left.unlink(missing_ok=True)
            others.unlink()

    def test_a_program_of_a_stopped_shell_has_a_moment_to_save(self, any_site: Site) -> None:
        code = (
            "import signal, sys, time\n"
            "def leave(*_): time.sleep(0.3); print('saved', flush=True); sys.exit()\n"
            "signal.signal(signal.SIGTERM, leave)\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        shell = ("sh", "-c", '"$@"; true', "sh", *python(code))
        run = any_site.start(command=shell)
        until(lambda: any_site.text(run))
        any_site.runtime.stop(run, StopOrder(StopBy.CANCEL, 10.0))
        end = any_site.end_of(run).exit
        assert end
        assert (end.exit_code in (-15, 143), end.killed) == (True, False)
        assert "saved" in any_site.text(run)

    def test_what_a_stopped_shell_leaves_behind_ends_soon(self, any_site: Site) -> None:
        code = (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        run = any_site.start(command=("sh", "-c", '"$@"; true', "sh", *python(code)))
        until(lambda: any_site.text(run))
        any_site.runtime.stop(run, StopOrder(StopBy.CANCEL, 30.0))
        end = any_site.end_of(run).exit
        assert end
        assert (end.exit_code in (-15, 143), end.killed) == (True, False)

    def test_its_lease_ends_it(self, any_site: Site) -> None:
        run = any_site.start(command=SLEEP, lease_s=1.0)
        end = any_site.end_of(run).exit
        assert end
        assert end.stopped_by is StopBy.LEASE

    def test_a_renewed_lease_keeps_it(self, any_site: Site) -> None:
        run = any_site.start(command=SLEEP, lease_s=1.0)
        any_site.runtime.renew(run, guard_orders.boot_s() + 60)
        time.sleep(1.5)
        assert any_site.runtime.poll(run).state is RunState.RUNNING

    def test_the_next_agent_adopts_and_stops_it(self, any_site: Site) -> None:
        run = any_site.start(command=SLEEP)
        until(lambda: any_site.text(run))
        any_site.runtime.close()
        with closing(any_site.again()) as later:
            assert later.list() == (run,)
            assert later.poll(run).state is RunState.RUNNING
            usage = later.usage(run, exact=True)
            assert usage
            assert usage.memory_gb > 0.003
            later.stop(run, StopOrder(StopBy.CANCEL, 5.0))
            until(lambda: later.poll(run).state is RunState.ENDED)

    def test_when_its_guard_was_killed_nothing_of_it_is_left(self, any_site: Site) -> None:
        code = "import os, time; os.fork() or os.setsid(); print('up', flush=True); time.sleep(60)"
        run = any_site.start(command=python(code))
        until(lambda: any_site.text(run).count("up") == 2)
        below = job_processes(any_site, run)
        owner = json.loads((any_site.runtime.folder(run) / "guard.pid").read_text())
        os.kill(owner["pid"], signal.SIGKILL)
        end = any_site.end_of(run).exit
        assert end
        assert end.error == "the run's guard was killed"
        until(lambda: not [p for p in below if is_running(p)])

    def test_signals_before_the_end_go_to_the_job(self, any_site: Site) -> None:
        code = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        limits = Limits(walltime_s=4.0, signal=Warned(signal.SIGUSR1, 2.5, "first"))
        end = any_site.end_of(any_site.start(command=python(code), limits=limits)).exit
        assert end
        assert (end.exit_code, end.stopped_by) == (3, None)


class TestWithAnAgent:
    """A whole agent, and the training library in its jobs."""

    def test_a_preempted_job_saves_first_and_resumes(self, any_site: Site) -> None:
        server = FakeServer()
        agent = an_agent(server, any_site.state, runtime=any_site.runtime)
        try:
            held = server.offer(a_spec(command=TRAINER, team=1))
            until(lambda: held.progress, agent)
            server.stop("a1", StopReason.PREEMPT, grace_s=20.0)
            until(lambda: agent.is_idle, agent)
            assert held.states == ["running", "stopping", "preempted"]
            assert held.reports[-1].exit_code == 75
            again = server.offer(a_spec("a2", fence=2, command=TRAINER, team=1))
            until(lambda: again.progress, agent)
            assert again.progress[0].step == (held.reports[-1].steps or 0) + 1
        finally:
            agent.close()

    def test_ranks_of_a_gang_meet_over_the_nodes_network(self, any_site: Site) -> None:
        gang: dict[str, Any] = {
            "world_size": 2, "rendezvous": f"127.0.0.1:{free_port()}", "gang_token": "secret",
            "job": "gang",
        }  # fmt: skip
        command = (*python(gang_job("pass")), "done.json")
        runs = [any_site.start(f"r{n}", command=command, rank=n, **gang) for n in range(2)]
        for run in runs:
            said = any_site.says(run)
            end = any_site.end_of(run).exit
            assert end
            assert end.exit_code == 0, said
            done = any_site.runtime.folder(run) / "work" / "done.json"
            assert json.loads(done.read_text()) == list(range(10))


class TestScripts:
    """Scripts with their own files for output, and steps."""

    SCRIPT = "#!/bin/sh\necho out\necho err >&2\nsrun -n2 sh -c 'echo step $SLURM_PROCID'\n"
    VARIABLES = {
        "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "2",
        "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1",
    }  # fmt: skip

    def test_a_script_runs_with_its_steps_in_a_shown_folder(self, state: Path) -> None:
        home = state.parent / "home"
        home.mkdir()
        home.chmod(0o777)
        isolation = an_isolation(state, mounts=(AllowedMount(home, writable=True),))
        for site in a_site(isolation):
            run = site.start(
                command=(), script=self.SCRIPT, folder=str(home), output="out.txt",
                error_output="err.txt", environment=self.VARIABLES,
            )  # fmt: skip
            end = site.end_of(run).exit
            assert end
            assert end.exit_code == 0, site.text(run)
            assert (home / "err.txt").read_text() == "err\n"
            said = site.runtime.read(run, "stdout", 0, 1000)
            assert said == (home / "out.txt").read_bytes()
            assert sorted(said.decode().split("\n")) == ["", "out", "step 0", "step 1"]

    @pytest.mark.parametrize("field", ["output", "folder", "checkpoint_place"])
    def test_a_place_that_is_not_shown_is_refused_with_its_remedy(
        self, site: Site, field: str
    ) -> None:
        place = str(site.state) if field == "folder" else str(site.state / "node.json")
        options: dict[str, Any] = {field: place}
        problem = site.runtime.objection(site.launch("a1", limits=None, **options))
        assert problem
        assert problem[0] is ReasonClass.USER
        assert field in problem[1]
        assert "operator" in problem[1]

    def test_a_link_in_place_of_its_output_shows_nothing_of_the_agents(self, state: Path) -> None:
        home = state.parent / "home"
        home.mkdir()
        home.chmod(0o777)
        isolation = an_isolation(state, mounts=(AllowedMount(home, writable=True),))
        for site in a_site(isolation):
            out = home / "sub" / "node.json"
            code = (
                "import os\nos.rename('sub', 'before')\n"
                f"os.symlink({str(state)!r}, 'sub')\nprint('done')"
            )
            out.parent.mkdir()
            out.parent.chmod(0o777)
            run = site.start(command=python(code), folder=str(home), output=str(out))
            site.end_of(run)
            assert (home / "sub").readlink() == state
            assert site.runtime.read(run, "stdout", 0, 1000) == b""

    @pytest.mark.skipif(not IS_ROOT, reason="others' files are closed to its agent too")
    @pytest.mark.parametrize("program", [BUBBLEWRAP, ""])
    def test_a_file_of_another_user_in_place_of_its_output_is_not_read(
        self, state: Path, program: str
    ) -> None:
        home = state.parent / "home"
        home.mkdir()
        home.chmod(0o777)
        theirs, own = home / "id_rsa", home / "own"
        theirs.write_text("secret")
        theirs.chmod(0o600)
        os.chown(theirs, USERS[2], USERS[2])
        mounts = (AllowedMount(home, writable=True),)
        for site in a_site(an_isolation(state, program=program, mounts=mounts)):
            code = ("echo", "hello")
            denied = site.start("a1", command=code, folder=str(home), output=str(theirs))
            run = site.start("a2", command=code, folder=str(home), output=str(own))
            assert site.says(run) == "hello\n"
            assert "secret" not in site.says(denied)
            assert site.runtime.size(denied, "stdout") == 0
            own.unlink()
            own.hardlink_to(theirs)
            assert site.says(run) == ""


class TestRefusals:
    """No launch without its isolation."""

    def test_a_sandbox_that_cannot_be_set_up_is_the_nodes_fault_and_starts_nothing(
        self, site: Site
    ) -> None:
        launch = site.launch(command=python("print('ran')"))
        site.runtime.prepare(launch)
        shutil.rmtree(site.runtime.folder(launch.run) / "tmp")
        site.runtime.start(launch.run, guard_orders.boot_s() + 60)
        end = site.end_of(launch.run).exit
        assert end
        assert not end.started
        assert end.error.startswith("the sandbox cannot be set up: Can't find source path")
        assert "ran" not in site.text(launch.run)

    def test_a_bubblewrap_that_is_gone_refuses_the_launch(self, site: Site) -> None:
        site.isolation = replace(site.isolation, program="/nowhere/bwrap")
        site.runtime.close()
        site.runtime = site.again()
        end = site.end_of(site.start(command=python("print('ran')"))).exit
        assert end
        assert not end.started
        assert "/nowhere/bwrap" in end.error

    def test_a_team_without_a_user_is_refused(self, site: Site) -> None:
        isolation = replace(site.isolation, users=USERS)
        for team in (0, len(USERS)):
            launch = site.launch(team=team)
            problem = isolation.objection(launch, site.runtime.folder(launch.run), ())
            assert problem
            assert problem[0] is ReasonClass.NODE
            assert "--users" in problem[1]
