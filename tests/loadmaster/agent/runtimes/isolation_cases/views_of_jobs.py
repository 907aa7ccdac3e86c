"""Isolated jobs: each sees and changes what is its own."""

import json
import os
from pathlib import Path

import psutil
import pytest

from loadmaster.agent.runtimes import isolation
from loadmaster.agent.runtimes.base import (
    PROGRESS,
    RunId,
)
from loadmaster.agent.runtimes.mounts import AllowedMount
from tests.builders_agent import python, until
from tests.builders_isolation import (
    IS_ROOT,
    NODE_TOKEN,
    SECRET,
    SLEEP,
    USERS,
    Site,
    a_site,
    an_isolation,
    job_processes,
)

READ = """
import pathlib, sys
for name in sys.argv[1:]:
    try:
        print(pathlib.Path(name).read_bytes())
    except OSError as error:
        print(type(error).__name__)
"""


class TestWhatAJobSees:
    """Of the agent and of others: nothing."""

    def test_neither_the_nodes_token_nor_a_secret_of_another_team(self, any_site: Site) -> None:
        other = any_site.start("other", command=SLEEP, secrets={"KEY": SECRET}, team=2)
        until(lambda: any_site.text(other))
        folder, state = any_site.runtime.folder(other), any_site.state
        pids = [process.pid for process in job_processes(any_site, other)]
        secrets = [state / "node.json", folder / "spec.json", folder / "stdout.log"]
        wanted = [*map(str, secrets), *(f"/proc/{pid}/environ" for pid in pids)]
        run = any_site.start("probe", command=(*python(READ), *wanted))
        said = any_site.says(run)
        assert len(pids) >= 1
        assert SECRET not in said
        assert NODE_TOKEN not in said
        assert set(said.split()) <= {"FileNotFoundError", "PermissionError"}

    def test_of_the_gpus_its_own(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("nvidia7", "nvidia8", "nvidiactl", "nvidia-uvm")
        for name in names:
            (site.state.parent / name).touch()
        monkeypatch.setattr(isolation, "DEV", site.state.parent)
        look = "import os; print(*(n for n in os.listdir('/dev') if n.startswith('nvidia')))"
        assert set(site.runs(look, gpu_files=("/dev/nvidia8",)).split()) == set(names[1:])
        assert set(site.runs(look, name="a2").split()) == set(names[2:])

    def test_no_process_but_its_own(self, site: Site) -> None:
        other = site.start("other", command=SLEEP, team=2)
        until(lambda: site.text(other))
        said = site.runs(
            "import pathlib\n"
            "for p in pathlib.Path('/proc').iterdir():\n"
            "    if p.name.isdigit(): print(p.name, (p / 'cmdline').read_bytes())"
        )
        assert "time.sleep" not in said
        assert len(said.splitlines()) == 2, "bubblewrap's first process, and the job"

    def test_no_files_of_others_in_temporary_places(self, site: Site) -> None:
        other = site.start("other", command=python("open('/tmp/mine', 'w').write('x')"), team=2)
        assert site.says(other) == ""
        run = site.start("later", command=("ls", "-R", "/tmp", "/var/tmp", "/dev/shm"), team=2)
        assert "mine" not in site.says(run)

    def test_no_checkpoints_of_another_job(self, any_site: Site) -> None:
        write = "import os; open(os.environ['LOADMASTER_CHECKPOINT_DIR'] + '/best', 'w').write('x')"
        assert any_site.says(any_site.start("other", command=python(write), team=2)) == ""
        kept = any_site.state / "checkpoints" / "job-of-other" / "best"
        assert kept.read_text() == "x"
        run = any_site.start("probe", command=(*python(READ), str(kept)))
        assert any_site.says(run).strip() in ("FileNotFoundError", "PermissionError")

    def test_its_own_folder_under_a_folder_that_the_operator_shows(self, state: Path) -> None:
        data, hidden = state.parent / "data", state.parent / "data" / "state"
        hidden.mkdir(parents=True, mode=0o700)
        (data / "set").write_text("numbers")
        isolation = an_isolation(hidden, mounts=(AllowedMount(data),))
        for site in a_site(isolation):
            names = [str(data / "set"), str(hidden / "node.json")]
            run = site.start("probe", command=(*python(READ), *names))
            assert site.says(run).split() == ["b'numbers'", "FileNotFoundError"]

    def test_not_the_agents_folder_through_a_link_to_what_is_shown(
        self, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hidden, current = state.parent / "release-1" / "state", state.parent / "current"
        hidden.mkdir(parents=True, mode=0o700)
        (hidden.parent / "module.py").write_text("numbers")
        current.symlink_to("release-1")
        monkeypatch.setenv("PYTHONPATH", str(current), prepend=os.pathsep)
        for site in a_site(an_isolation(hidden)):
            names = [str(current / name) for name in ("module.py", "state/node.json")]
            run = site.start("probe", command=(*python(READ), *names))
            assert site.says(run).split() == ["b'numbers'", "FileNotFoundError"]

    def test_name_servers_behind_a_link(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        real, link = site.state.parent / "resolve" / "stub", site.state.parent / "resolv.conf"
        real.parent.mkdir()
        real.write_text("nameserver 127.0.0.53")
        (real.parent / "other").touch()
        link.symlink_to(real)
        monkeypatch.setattr(isolation, "RESOLVER", link)
        run = site.start("probe", command=(*python(READ), str(real), str(real.parent / "other")))
        assert site.says(run).split("\n")[:2] == ["b'nameserver 127.0.0.53'", "FileNotFoundError"]


class TestWhatAJobMayChange:
    """Its work, checkpoints and progress, and nothing that the agent or its guard believes."""

    def test_not_its_lease_nor_the_orders_to_stop_nor_its_end(self, any_site: Site) -> None:
        code = (
            "import os, pathlib\n"
            "run = pathlib.Path(os.environ['LOADMASTER_RUN_DIR'])\n"
            "for path in (run / 'lease.json', run / 'stop.json', run / 'term.json', run / 'new',\n"
            "             run.parent / 'exit.json', run.parent / 'guard.pid'):\n"
            "    for act in (lambda: path.write_text('{}'), path.unlink,\n"
            "                lambda: path.replace(run / 'x')):\n"
            "        try: print('changed', path, act())\n"
            "        except OSError as error: pass\n"
            "(run / 'lease.json').read_text()\n"
            "exit(5)"
        )
        run = any_site.start("probe", command=python(code))
        end = any_site.end_of(run).exit
        assert end
        assert end.exit_code == 5
        assert f"changed {any_site.runtime.orders(run)}" not in any_site.text(run)
        folder = any_site.runtime.folder(run)
        assert json.loads((folder / "run" / "lease.json").read_text())["deadline_s"]
        assert {path.name for path in (folder / "run").iterdir()} == {
            "lease.json", "progress.jsonl", "steps", "term.json",
        }  # fmt: skip

    def test_progress_and_checkpoints_and_a_home(self, any_site: Site) -> None:
        code = (
            "import os, pathlib\n"
            "run = pathlib.Path(os.environ['LOADMASTER_RUN_DIR'])\n"
            "with open(run / 'progress.jsonl', 'a') as file: file.write('{}\\n')\n"
            "open(os.environ['LOADMASTER_CHECKPOINT_DIR'] + '/step', 'w').write('3')\n"
            "open('here', 'w').write('x')\n"
            "open(os.environ['HOME'] + '/home', 'w').write('x')\n"
            "import getpass, tempfile; tempfile.mkstemp(); print(getpass.getuser())"
        )
        run = any_site.start("probe", command=python(code))
        assert any_site.says(run) == "job\n"
        assert any_site.runtime.read(run, PROGRESS, 0, 100) == b"{}\n"
        work = any_site.runtime.folder(run) / "work"
        assert {path.name for path in work.iterdir()} == {"here", "home"}
        again = any_site.start(
            "later", job="job-of-probe", command=python(
                "import os; print(open(os.environ['LOADMASTER_CHECKPOINT_DIR'] + '/step').read())"
            ),
        )  # fmt: skip
        assert any_site.says(again) == "3\n"

    def test_checkpoints_where_the_operator_lets_jobs_write(self, state: Path) -> None:
        scratch = state.parent / "scratch"
        scratch.mkdir()
        scratch.chmod(0o1777)
        isolation = an_isolation(state, mounts=(AllowedMount(scratch, writable=True),))
        for site in a_site(isolation):
            code = "import os; place = os.environ['LOADMASTER_CHECKPOINT_DIR']; os.makedirs(place)"
            place = scratch / "mine" / "best"
            run = site.start(command=python(code), checkpoint_place=str(place))
            assert site.says(run) == ""
            assert place.stat().st_uid == (USERS[1] if IS_ROOT else os.getuid())

    def test_what_an_agent_without_users_had_saved_is_given_to_the_teams_user(
        self, any_site: Site
    ) -> None:
        folder = any_site.state / "checkpoints" / "job-of-probe"
        (folder / "step-1").mkdir(parents=True, mode=0o700)
        (folder / "step-1" / "model").touch(0o600)
        (folder / "link").symlink_to(any_site.state / "node.json")
        code = (
            "import os; os.chdir(os.environ['LOADMASTER_CHECKPOINT_DIR']);"
            " open('step-1/model', 'w').write('2')"
        )
        assert any_site.says(any_site.start("probe", command=python(code))) == ""
        assert (any_site.state / "node.json").stat().st_uid == os.getuid()

    def test_no_file_of_the_system(self, site: Site) -> None:
        said = site.runs(
            "for name in ('/usr/x', '/etc/x', '/opt/x', '/sys/x'):\n"
            "    try: open(name, 'w'); print('wrote', name)\n"
            "    except OSError: pass"
        )
        assert said == ""

    def test_no_memory_behind_files_beyond_what_it_asked_for(self, site: Site) -> None:
        said = site.runs(
            "for name in ('/dev/shm/x', '/dev/x', '/x'):\n"
            "    try: print(name, open(name, 'wb', buffering=0).write(bytes(10**7)))\n"
            "    except OSError as error: print(error)\n"
            "open('/dev/null', 'w').write('x'); open('/dev/ptmx', 'r+b', buffering=0)",
            memory_gb=0.004,
        )
        assert 0 < int(said.split()[1]) < 4_010_000
        assert said.count("Read-only file system") == 2
        assert len(said.splitlines()) == 3

    @pytest.mark.parametrize("then", ["", "m = mmap.mmap(f.fileno(), 0); sum(m[::4096])"])
    def test_files_in_shared_memory_count_once_as_the_jobs_memory(
        self, site: Site, then: str
    ) -> None:
        code = (
            "import mmap, time\nf = open('/dev/shm/x', 'w+b'); f.write(bytes(200_000_000))\n"
            f"f.flush(); {then}\nprint('up', flush=True); time.sleep(60)"
        )
        run = site.start(command=python(code), memory_gb=1.0)
        until(lambda: site.text(run))
        for exact in (False, True):
            usage = site.runtime.usage(run, exact=exact)
            assert usage
            assert 0.18 < usage.memory_gb < 0.25

    def test_a_library_named_to_be_loaded_is_loaded_inside_alone(self, site: Site) -> None:
        run = site.start("probe", command=("/bin/cat", "/proc/1/environ"), environment={
            "LD_PRELOAD": "/tmp/evil.so", "MARK": "outside"
        })  # fmt: skip
        said = site.says(run)
        assert "LD_PRELOAD cannot be preloaded" in said or "evil.so" in said
        command_lines = [" ".join(p.cmdline()) for p in job_processes_of_all(site, run)]
        assert not any("outside" in line for line in command_lines)


def job_processes_of_all(site: Site, run: RunId) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(site.runtime.folder(run)) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
