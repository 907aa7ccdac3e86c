"""The docker runtime's pure parts, and the runtime over an Engine that is played: no Engine needed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent import guard
from loadmaster.agent.config import AgentConfig, ConfigError, read_config
from loadmaster.agent.files import open_plain, read_object
from loadmaster.agent.machine import Identity
from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.progress import read_samples
from loadmaster.agent.runtimes.base import Launch, RunId, RunState, StopBy, StopOrder
from loadmaster.agent.runtimes.docker import DockerOptions, DockerRuntime, EngineDownError, OptionError
from loadmaster.agent.runtimes.docker.engine import host_config, stats_of
from loadmaster.agent.runtimes.docker.options import AllowedMount
from loadmaster.agent.runtimes.docker.plan import (
    ContainerPlan,
    Wanted,
    container_plan,
    job_environment,
    launch_script,
    memory_bytes,
)
from loadmaster.agent.runtimes.docker.port import Container, EngineRefusedError, Image, ImageMissingError, NameTakenError, Stats
from loadmaster.agent.runtimes.docker.pulling import PullProgress, digest_of, pinned, repository_of
from loadmaster.agent.runtimes.docker.verdict import end_of, start_failure
from loadmaster.agent.start import EXIT_CONFIG, runtime_of, serve
from loadmaster.protocol import AssignmentState, ReasonClass, features_with
from tests.builders_agent import FakeServer, a_spec, an_agent, until

DIGEST = "sha256:" + "a" * 64
IMAGE = Image("sha256:" + "b" * 64)


class TestOptions:
    def test_text_and_yaml_say_the_same(self) -> None:
        from_text = DockerOptions.read(
            {"mounts": "/data,/scratch:rw", "pids": "10", "read-only": "true", "pull": "never", "shm_gb": "2"}
        )
        from_yaml = DockerOptions.read(
            {"mounts": ["/data", "/scratch:rw"], "pids": 10, "read_only": True, "pull": "never", "shm_gb": 2}
        )
        assert from_text == from_yaml
        assert from_text.mounts == (AllowedMount(Path("/data")), AllowedMount(Path("/scratch"), writable=True))

    @pytest.mark.parametrize(
        ("given", "word"),
        [
            ({"network": "host"}, "docker.network"),
            ({"network": "container:x"}, "docker.network"),
            ({"user": "ann"}, "docker.user"),
            ({"pull": "sometimes"}, "missing, always, never"),
            ({"mounts": ["/"]}, "docker.mounts"),
            ({"mounts": ["data"]}, "docker.mounts"),
            ({"mounts": 3}, "docker.mounts"),
            ({"pids": 0}, "docker.pids"),
            ({"shm_gb": -1}, "docker.shm_gb"),
            ({"read_only": "perhaps"}, "docker.read_only"),
            ({"privileged": True}, "known are"),
        ],
    )
    def test_a_wrong_one_is_named_with_what_would_be_right(self, given: dict[str, Any], word: str) -> None:
        with pytest.raises(OptionError, match=word):
            DockerOptions.read(given)

    @pytest.mark.parametrize(
        ("user", "expected"), [("", (1000, 1000)), ("1234", (1234, 1234)), ("12:34", (12, 34)), ("image", None)]
    )
    def test_jobs_of_a_root_agent_are_not_root(self, user: str, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 0)
        assert DockerOptions.read({"user": user}).identity() == expected

    def test_an_ordinary_users_agent_runs_jobs_as_that_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 1001)
        monkeypatch.setattr(os, "getgid", lambda: 1002)
        assert DockerOptions.read({}).identity() == (1001, 1002)
        with pytest.raises(OptionError, match="only an agent that runs as root"):
            DockerOptions.read({"user": "1000"})

    def test_the_agents_settings_hold_them(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.yaml"
        path.write_text("server: http://s\nruntime: docker\ndocker: {pull: never, mounts: [/data]}\n")
        assert read_config({"config": path}, {}).docker == {"pull": "never", "mounts": ["/data"]}
        given = {"server": "http://s", "docker": ["pull=never", "mounts=/data"]}
        assert read_config(given, {"LOADMASTER_RUNTIME": "docker"}).docker == {"pull": "never", "mounts": "/data"}
        found = read_config({"server": "http://s"}, {"LOADMASTER_DOCKER": "pull=never; user=12:34"})
        assert found.docker == {"pull": "never", "user": "12:34"}
        with pytest.raises(ConfigError, match="NAME=VALUE"):
            read_config({"server": "http://s", "docker": ["pull"]}, {})


class TestStart:
    def test_an_agent_whose_engine_does_not_answer_says_what_to_do(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        config = AgentConfig("http://127.0.0.1:9", tmp_path, runtime="docker", docker={"host": f"unix://{tmp_path}/none.sock"})
        assert serve(config, threading.Event()) == EXIT_CONFIG
        assert "no Docker Engine answers at" in caplog.text
        assert "systemctl start docker" in caplog.text

    def test_a_wrong_option_is_a_wrong_setting(self, tmp_path: Path) -> None:
        config = AgentConfig("http://s", tmp_path, runtime="docker", docker={"pull": "x"})
        with pytest.raises(ConfigError, match=r"docker\.pull"):
            runtime_of(config, Identity("m", "b", "h"))

    def test_a_node_offers_the_runtime_of_its_agent_alone(self) -> None:
        assert {"docker", "process"} & set(features_with("docker")) == {"docker"}
        assert {"docker", "process"} & set(features_with("process")) == {"process"}
        assert "lease_guard" in features_with("docker")


class TestPlan:
    def plan(self, **changes: Any) -> ContainerPlan:
        wanted = Wanted(5.0, "boot", gpus=("GPU-1",), checkpoints="/shared/job-1")
        options = DockerOptions(limit_cores=changes.pop("limit_cores", True))
        return container_plan(
            RunId("a1", 3),
            a_spec(**changes),
            wanted,
            folder=Path("/runs/lm-a1-3"),
            owner="me",
            user=(7, 8),
            mounts=(),
            options=options,
        )

    def test_a_container_is_named_and_labelled_by_assignment_and_fence(self) -> None:
        plan = self.plan()
        assert plan.name == "lm-a1-3"
        assert plan.labels == {
            "loadmaster.owner": "me",
            "loadmaster.assignment": "a1",
            "loadmaster.fence": "3",
            "loadmaster.job": "job-1",
        }
        assert plan.user == "7:8"

    def test_nothing_that_would_prolong_the_lease_is_writable(self) -> None:
        writable = {mount.target for mount in self.plan().mounts if mount.writable}
        assert writable == {"/loadmaster/run/progress.jsonl", "/loadmaster/guard", "/loadmaster/work", "/loadmaster/checkpoints"}

    def test_cores_and_memory_are_limits(self) -> None:
        assert self.plan(cores=1.5).cpu_quota_us == 150_000
        assert self.plan(cores=1.5, cpu_quota=0.5).cpu_quota_us == 50_000
        assert self.plan(cores=1.5, limit_cores=False).cpu_quota_us is None
        assert self.plan().cpu_quota_us is None
        assert memory_bytes(1.0) == 1_050_000_000
        assert memory_bytes(0.0) is None

    def test_the_engine_is_asked_for_no_privilege_and_for_gpus_by_uuid(self) -> None:
        config = host_config(self.plan(memory_gb=1.0, cores=2.0), DockerOptions())
        assert (config["privileged"], config["cap_drop"], config["security_opt"]) == (False, ["ALL"], ["no-new-privileges"])
        assert (config["mem_limit"], config["memswap_limit"], config["cpu_quota"]) == (1_050_000_000, 1_050_000_000, 200_000)
        assert config["device_requests"][0]["DeviceIDs"] == ["GPU-1"]
        assert "device_requests" not in host_config(replace(self.plan(), gpus=()), DockerOptions())

    def test_a_job_sees_its_folders_by_the_names_they_have_inside(self) -> None:
        found = job_environment({"LOADMASTER_CHECKPOINT_DIR": "/host/ckpt", "LOADMASTER_RUN_DIR": "/host/run", "HOME": "/mine"})
        assert (found["LOADMASTER_CHECKPOINT_DIR"], found["LOADMASTER_RUN_DIR"]) == ("/loadmaster/checkpoints", "/loadmaster/run")
        assert (found["HOME"], job_environment({})["HOME"]) == ("/mine", "/loadmaster/work")

    def test_the_launch_script_says_any_text_exactly(self, tmp_path: Path) -> None:
        odd = 'it\'s $HOME "`x`"\n\\ end'
        script = launch_script(("/usr/bin/env", "printf", "%s|%s", odd, ""), {"A": odd}).replace("/loadmaster/guard", str(tmp_path))
        (tmp_path / "launch.sh").write_text(script)
        done = subprocess.run(["sh", "-c", f". {tmp_path}/launch.sh"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{odd}|"
        assert (tmp_path / "launch.sh").read_bytes() == b""

    def test_the_shell_guard_refuses_to_guard_outside_of_a_container(self, tmp_path: Path) -> None:
        script = Path(guard.__file__).with_name("guard.sh")
        done = subprocess.run(
            ["/bin/sh", str(script), str(tmp_path), str(tmp_path), "100", "boot"],
            env={"PATH": ""},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 18
        assert b"not process 1" in done.stderr


class TestPulling:
    def test_progress_grows_from_nothing_to_all_and_never_back(self) -> None:
        progress = PullProgress()
        events: list[dict[str, Any]] = [
            {"status": "Pulling from library/x", "id": "1"},
            {"status": "Pulling fs layer", "id": "a"},
            {"status": "Pulling fs layer", "id": "b"},
            {"status": "Downloading", "id": "a", "progressDetail": {"current": 50, "total": 100}},
            {"status": "Download complete", "id": "a"},
            {"status": "Already exists", "id": "b"},
            {"status": "Extracting", "id": "a", "progressDetail": {"current": 50, "total": 100}},
            {"status": "Waiting", "id": "a"},
            {"status": "Pull complete", "id": "a"},
        ]
        told = [progress.hear(event) for event in events]
        assert told == sorted(told)
        assert told[:3] == [0.0, 0.0, 0.0]
        assert told[3:6] == [0.125, 0.25, 0.75]
        assert (told[-2], told[-1]) == (0.875, 1.0)

    @pytest.mark.parametrize(
        ("image", "repository"),
        [
            ("train:1", "train"),
            ("train", "train"),
            ("registry.example:5000/me/train:1", "registry.example:5000/me/train"),
            ("registry.example:5000/me/train", "registry.example:5000/me/train"),
            (f"me/train@{DIGEST}", "me/train"),
        ],
    )
    def test_a_name_without_its_tag(self, image: str, repository: str) -> None:
        assert repository_of(image) == repository
        assert pinned(image, DIGEST) == f"{repository}@{DIGEST}"

    def test_the_digest_is_that_of_the_images_own_registry_else_any_else_its_id(self) -> None:
        digests = ("mirror.example/x@sha256:m", "r.example/me/x@sha256:r")
        assert digest_of("r.example/me/x:1", "sha256:id", digests) == "sha256:r"
        assert digest_of("other:1", "sha256:id", digests) == "sha256:m"
        assert digest_of("other:1", "sha256:id", ()) == "sha256:id"


class TestVerdict:
    ENDED = Container("exited", {}, exit_code=0, ended_at_s=50.0)
    TOLD = {"ended_at_s": 49.0, "started": True, "exit_code": 1, "stopped_by": None, "killed": False, "oom": False, "error": ""}

    def test_the_guards_word_holds(self) -> None:
        ended = end_of(self.ENDED, self.TOLD, True)
        assert (ended.exit_code, ended.ended_at_s, ended.oom) == (1, 49.0, False)

    def test_the_engine_knows_of_memory(self) -> None:
        assert end_of(replace(self.ENDED, oom=True), self.TOLD, True).oom
        assert not end_of(replace(self.ENDED, oom=True), {**self.TOLD, "exit_code": 0}, True).oom
        assert not end_of(replace(self.ENDED, oom=True), {**self.TOLD, "stopped_by": "preempt"}, True).oom

    @pytest.mark.parametrize(
        "nonsense", [{"ended_at_s": "x"}, {"ended_at_s": 1, "exit_code": [1]}, {"ended_at_s": 1, "stopped_by": "me"}]
    )
    def test_a_senseless_word_counts_as_none(self, nonsense: dict[str, Any]) -> None:
        ended = end_of(replace(self.ENDED, exit_code=137), nonsense, True)
        assert ended.exit_code is None
        assert "killed" in ended.error

    def test_a_guard_that_was_killed_is_the_nodes_fault_and_memory_the_jobs(self) -> None:
        killed = end_of(replace(self.ENDED, exit_code=137), None, True)
        assert outcome_of(killed).reason_class is ReasonClass.NODE
        assert outcome_of(end_of(replace(self.ENDED, exit_code=137, oom=True), None, True)).reason_class is ReasonClass.OOM

    def test_a_guard_that_never_began_is_the_images_fault(self) -> None:
        outcome = outcome_of(end_of(replace(self.ENDED, exit_code=19), None, False))
        assert outcome.reason_class is ReasonClass.IMAGE
        assert "command sleep" in outcome.reason

    @pytest.mark.parametrize(
        ("text", "blame"),
        [
            ('could not select device driver "nvidia" with capabilities: [[gpu]]', ReasonClass.GPU),
            ("exec: /bin/sh: stat /bin/sh: no such file or directory", ReasonClass.IMAGE),
            ("mkdir /var/run: no space left on device", ReasonClass.NODE),
        ],
    )
    def test_a_failed_start_has_somebody_to_blame(self, text: str, blame: ReasonClass) -> None:
        assert outcome_of(start_failure(1.0, text)).reason_class is blame


def test_statistics_leave_out_the_cold_file_cache() -> None:
    data = {"memory_stats": {"usage": 100, "stats": {"total_inactive_file": 30}}, "cpu_stats": {"cpu_usage": {"total_usage": 2e9}}}
    assert stats_of(data) == Stats(2.0, 70)
    assert stats_of({"memory_stats": {}, "cpu_stats": {}}) is None


class TestFilesOthersWrite:
    def test_links_pipes_and_folders_are_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text('{"a": 1}')
        (tmp_path / "link").symlink_to(tmp_path / "real")
        os.mkfifo(tmp_path / "pipe")
        assert read_object(tmp_path / "real") == {"a": 1}
        for name in ("link", "pipe", ".", "none"):
            assert read_object(tmp_path / name) is None
            with pytest.raises(FileNotFoundError):
                open_plain(tmp_path / name)

    def test_text_that_is_no_object_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("[" * 100_000)
        assert read_object(tmp_path / "x") is None


class PlayedEngine:
    """An Engine in memory. `down` makes it unreachable; `lost` makes the next creation succeed although its answer is lost.

    `slow` creations lose their answer and go on for that many questions: the name is taken, the container not yet to be seen.
    """

    def __init__(self) -> None:
        self.made: dict[str, Container] = {}
        self.plans: dict[str, ContainerPlan] = {}
        self.images = {"train:1": IMAGE}
        self.down = False
        self.lost = 0
        self.slow = 0
        self.half_made: dict[str, tuple[int, Container]] = {}
        self.pull_fractions: list[float] = []
        self.pull_error = ""
        self.pulls: list[str] = []
        self.started: list[str] = []
        self.pulling = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def _answer(self) -> None:
        if self.down:
            raise EngineDownError("no answer")

    def runs(self, owner: str) -> dict[RunId, Container]:
        self._answer()
        found = {RunId.parse(name): c for name, c in self.made.items() if c.labels.get("loadmaster.owner") == owner}
        return {run: container for run, container in found.items() if run}

    def inspect(self, name: str) -> Container | None:
        self._answer()
        if name in self.half_made:
            left, container = self.half_made.pop(name)
            if left > 0:
                self.half_made[name] = left - 1, container
            else:
                self.made[name] = container
                return None  # as it was when the question came
        return self.made.get(name)

    def find(self, reference: str) -> Image | None:
        self._answer()
        return self.images.get(reference)

    def pull(self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]) -> None:
        self.pulls.append(reference)
        for fraction in self.pull_fractions:
            tell(fraction)
        self.pulling.set()
        self.go_on.wait(20)
        if self.pull_error:
            raise ImageMissingError(self.pull_error)
        self.images[reference] = IMAGE

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        self._answer()
        if plan.name in self.made or plan.name in self.half_made:
            raise NameTakenError(plan.name)
        self.plans[plan.name] = plan
        container = Container("created", plan.labels, image=plan.image)
        if self.slow:
            self.half_made[plan.name], self.slow = (self.slow, container), 0
            raise EngineDownError("the answer took too long")
        self.made[plan.name] = container
        if self.lost:
            self.lost -= 1
            raise EngineDownError("the answer was lost")

    def start(self, name: str) -> None:
        self._answer()
        self.started.append(name)
        self.made[name] = replace(self.made[name], state="running")

    def kill(self, name: str) -> None:
        self.made[name] = replace(self.made[name], state="exited", exit_code=137, ended_at_s=1.0)

    def terminate(self, name: str) -> None:
        self.kill(name)

    def remove(self, name: str) -> None:
        self._answer()
        self.made.pop(name, None)

    def read_file(self, name: str, path: str) -> bytes | None:
        return b"" if path == "/bin/sh" else None

    def last_words(self, name: str) -> str:
        return ""

    def stats(self, name: str) -> Stats | None:
        return Stats(1.0, 2)

    def close(self) -> None:
        """Nothing is held."""


class TestRuntime:
    """The runtime's own decisions, with an Engine that fails at will."""

    @pytest.fixture
    def engine(self) -> PlayedEngine:
        return PlayedEngine()

    @pytest.fixture
    def runtime(self, tmp_path: Path, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerRuntime]:
        for name, value in (("preparing.PULL_PAUSE_S", 0.0), ("preparing.ENGINE_PAUSE_S", 0.05), ("watch.LOOK_AGAIN_S", 0.05)):
            monkeypatch.setattr(f"loadmaster.agent.runtimes.docker.{name}", value)
        runtime = DockerRuntime(tmp_path / "runs", engine, "me", DockerOptions())
        yield runtime
        engine.down = False
        runtime.close()

    def prepare(self, runtime: DockerRuntime, **changes: Any) -> RunId:
        spec = a_spec(runtime="docker", **{"image": "train:1", **changes})
        run = RunId(spec.assignment, spec.fence)
        runtime.prepare(Launch(run, spec, {"KEY": "hunter2"}, 1.0, "boot"))
        return run

    def is_state(self, runtime: DockerRuntime, run: RunId, state: RunState) -> None:
        until(lambda: runtime.poll(run).state is state)

    def place_a_link(self, tmp_path: Path) -> Launch:
        """A launch whose mount and checkpoints are where jobs may write, accepted."""
        for name in ("rw/jobs/data", "rw/jobs/ckpt"):
            (tmp_path / name).mkdir(parents=True)
        spec = a_spec(runtime="docker", image="other:1", mounts=(f"{tmp_path}/rw/jobs/data:/data",))
        folders = {"LOADMASTER_CHECKPOINT_DIR": f"{tmp_path}/rw/jobs/ckpt"}
        return Launch(RunId(spec.assignment, spec.fence), spec, folders, 1.0, "boot", checkpoints=tmp_path / "shared")

    @pytest.fixture
    def open_runtime(self, tmp_path: Path, runtime: DockerRuntime, engine: PlayedEngine) -> Iterator[DockerRuntime]:
        """One whose jobs may write to a folder."""
        options = DockerOptions(mounts=(AllowedMount(tmp_path / "rw", writable=True),))
        another = DockerRuntime(tmp_path / "state" / "runs", engine, "open", options)
        yield another
        engine.go_on.set()
        another.close()

    @pytest.mark.parametrize(("swapped", "target"), [("ckpt", "/"), ("data", "/"), ("ckpt", "{}/rw/else"), ("data", "{}/rw/else")])
    def test_a_folder_swapped_for_a_link_while_the_image_is_pulled_is_not_mounted(
        self, tmp_path: Path, open_runtime: DockerRuntime, engine: PlayedEngine, swapped: str, target: str
    ) -> None:
        launch = self.place_a_link(tmp_path)
        (tmp_path / "rw" / "else").mkdir()
        engine.go_on.clear()
        assert open_runtime.objection(launch) is None
        open_runtime.prepare(launch)
        assert engine.pulling.wait(20)
        (tmp_path / "rw" / "jobs" / swapped).rmdir()
        (tmp_path / "rw" / "jobs" / swapped).symlink_to(target.format(tmp_path))
        engine.go_on.set()
        self.is_state(open_runtime, launch.run, RunState.ENDED)
        ended = open_runtime.poll(launch.run).exit
        assert ended is not None
        assert (ended.started, ended.blame) == (False, ReasonClass.USER)
        assert "mounts" in ended.error or "checkpoint_place" in ended.error
        assert engine.made == {}

    def test_a_folder_swapped_for_a_link_between_acceptance_and_preparing_is_not_mounted(
        self, tmp_path: Path, open_runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        launch = self.place_a_link(tmp_path)
        outside = tmp_path / "outside"
        outside.mkdir()
        assert open_runtime.objection(launch) is None
        (tmp_path / "rw" / "jobs" / "ckpt").rmdir()
        (tmp_path / "rw" / "jobs" / "ckpt").symlink_to(outside / "made")
        open_runtime.prepare(launch)
        self.is_state(open_runtime, launch.run, RunState.ENDED)
        assert engine.made == {}
        assert list(outside.iterdir()) == []

    @pytest.mark.parametrize("swapped", ["ckpt", "data"])
    def test_a_container_whose_folder_was_swapped_since_it_was_made_is_not_started(
        self, tmp_path: Path, open_runtime: DockerRuntime, engine: PlayedEngine, swapped: str
    ) -> None:
        launch = self.place_a_link(tmp_path)
        open_runtime.prepare(launch)
        self.is_state(open_runtime, launch.run, RunState.PREPARED)
        sources = {mount.target: mount.source for mount in engine.plans[launch.run.name].mounts}
        assert sources["/data"] == f"{tmp_path}/rw/jobs/data"
        (tmp_path / "rw" / "jobs" / swapped).rename(tmp_path / "rw" / "moved")
        (tmp_path / "rw" / "jobs" / swapped).symlink_to("/")
        open_runtime.start(launch.run, guard.boot_s() + 60)
        self.is_state(open_runtime, launch.run, RunState.ENDED)
        ended = open_runtime.poll(launch.run).exit
        assert ended is not None
        assert (ended.started, ended.blame) == (False, ReasonClass.USER)
        assert engine.started == []

    def test_a_container_made_although_the_call_failed_is_adopted(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        engine.lost = 1
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        assert list(engine.made) == [run.name]
        assert runtime.poll(run).image_digest == IMAGE.id

    def test_a_container_that_is_still_being_made_by_a_lost_call_is_waited_for_and_adopted(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        engine.slow = 3
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        assert engine.made[run.name].labels["loadmaster.fence"] == "1"
        assert engine.half_made == {}

    def test_a_container_of_its_own_that_is_being_removed_is_made_anew_once_it_is_gone(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        going = Container("removing", {"loadmaster.owner": "me", "loadmaster.assignment": "a1", "loadmaster.fence": "1"})
        engine.made["lm-a1-1"] = going
        asked: list[str] = []

        def inspect(name: str) -> Container | None:
            asked.append(name)
            if len(asked) == 4:
                del engine.made[name]
            return engine.made.get(name)

        monkeypatch.setattr(engine, "inspect", inspect)
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        assert engine.made[run.name].state == "created"

    def test_an_older_container_seen_as_it_was_removed_is_not_the_end_of_the_new_one(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = runtime._watch
        going = Container("removing", {"loadmaster.owner": "me", "loadmaster.assignment": "a1", "loadmaster.fence": "1"})
        engine.made["lm-a1-1"] = going
        watch.look()
        monkeypatch.setattr(watch, "wake", lambda: None)
        del engine.made["lm-a1-1"]
        run = self.prepare(runtime)
        until(lambda: runtime.poll(run).state is not RunState.PREPARING)
        assert runtime.poll(run).state is RunState.PREPARED

    def test_a_name_that_stays_taken_by_what_nobody_sees_ends_as_the_nodes_fault(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.NAME_TAKEN_S", 0.2)
        engine.half_made["lm-a1-1"] = (10**9, Container("created", {}))
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert (ended.started, ended.blame) == (False, ReasonClass.NODE)
        assert "none that the Engine shows" in ended.error

    def test_a_container_that_goes_while_its_image_is_looked_into_is_no_end(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look(name: str, path: str) -> bytes | None:
            engine.made[name] = replace(engine.made[name], state="removing")
            runtime._watch.look()
            seen.append(runtime.poll(RunId("a1", 1)).state)
            return None

        seen: list[RunState] = []
        monkeypatch.setattr(engine, "read_file", look)
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.ENDED)
        assert set(seen) == {RunState.PREPARING}
        ended = runtime.poll(run).exit
        assert ended is not None
        assert "neither /bin/sh nor" in ended.error

    def test_a_name_taken_by_a_stranger_is_left_alone(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        engine.made["lm-a1-1"] = stranger = Container("running", {"loadmaster.owner": "another"})
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert ended.blame is ReasonClass.NODE
        assert engine.made["lm-a1-1"] == stranger

    def test_an_engine_that_goes_away_is_trouble_and_running_jobs_keep_their_leases(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loadmaster.agent.runtimes.docker.watch.TROUBLE_AFTER_S", 0.1)
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        runtime.start(run, guard.boot_s() + 60)
        until(lambda: engine.started)
        engine.down = True
        until(runtime.trouble)
        runtime.renew(run, guard.boot_s() + 600)
        status = runtime.poll(run)
        assert status.state is RunState.RUNNING
        assert status.lease_until_s is not None
        assert status.lease_until_s > guard.boot_s() + 500
        engine.down = False
        until(lambda: not runtime.trouble())
        assert runtime.poll(run).state is RunState.RUNNING

    def test_the_start_of_the_container_counts_as_set_up(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        runtime.start(run, guard.boot_s() + 60)
        started_at_s = runtime.started_at_s(run)
        assert started_at_s is not None
        lines = [
            {"event": "start", "at_s": started_at_s + 3.5, "step": 0, "launch_steps": 0, "setup_s": 1.25},
            {"event": "progress", "at_s": started_at_s + 5.0, "step": 1, "launch_steps": 1},
        ]
        runtime.stream(run, "progress").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        samples, _ = read_samples(runtime, run, 0)
        assert [sample.setup_s for sample in samples] == [pytest.approx(3.5), None]
        until(lambda: engine.started)
        runtime.start(run, guard.boot_s() + 60)
        assert runtime.started_at_s(run) == started_at_s

    def test_a_start_waits_for_an_engine_that_is_away(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        engine.down = True
        runtime.start(run, guard.boot_s() + 60)
        assert runtime.poll(run).state is RunState.RUNNING
        engine.down = False
        until(lambda: engine.started == [run.name])

    def test_a_start_that_finds_no_engine_before_the_lease_ends_never_happens(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        engine.down = True
        runtime.start(run, guard.boot_s() - 1)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert (ended.started, ended.stopped_by, ended.error) == (False, StopBy.LEASE, "no answer")
        assert (runtime.folder(run) / "guard" / "guard.pid").exists()

    def test_a_preparation_goes_on_after_a_restart(self, runtime: DockerRuntime, engine: PlayedEngine, tmp_path: Path) -> None:
        engine.images.clear()
        engine.pull_fractions = [0.4]
        engine.go_on.clear()
        run = self.prepare(runtime)
        until(engine.pulling.is_set)
        assert runtime.poll(run).state is RunState.PREPARING
        assert runtime.poll(run).prepared_fraction == 0.4
        another = DockerRuntime(tmp_path / "runs", engine, "me", DockerOptions())
        until(lambda: another.poll(run).state is RunState.PREPARING)
        engine.go_on.set()
        self.is_state(another, run, RunState.PREPARED)
        another.close()

    def test_a_launch_that_is_called_off_leaves_nothing(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        engine.images.clear()
        engine.go_on.clear()
        run = self.prepare(runtime)
        until(engine.pulling.is_set)
        runtime.remove(run)
        until(lambda: not runtime.folder(run).exists())
        engine.go_on.set()
        until(lambda: not [t for t in threading.enumerate() if t.name == f"prepare {run.name}"])
        assert engine.made == {}
        assert runtime.list() == ()

    def test_a_failed_pull_is_tried_again_and_then_the_images_fault(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        engine.images.clear()
        engine.pull_error = "no such host"
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert ended.blame is ReasonClass.IMAGE
        assert len(engine.pulls) == 3

    def test_a_pinned_image_is_pulled_by_its_digest(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        run = self.prepare(runtime, image_digest=DIGEST)
        self.is_state(runtime, run, RunState.PREPARED)
        assert engine.pulls == [f"train@{DIGEST}"]

    def test_a_stray_without_a_folder_is_killed_when_it_is_stopped(self, runtime: DockerRuntime, engine: PlayedEngine) -> None:
        run = RunId("stray", 4)
        engine.made[run.name] = Container("running", {"loadmaster.owner": "me"})
        until(lambda: runtime.list() == (run,))
        assert runtime.poll(run).state is RunState.RUNNING
        runtime.stop(run, StopOrder(StopBy.CANCEL, 1.0))
        self.is_state(runtime, run, RunState.ENDED)
        runtime.remove(run)
        until(lambda: engine.made == {})

    def test_secrets_are_in_no_plan_and_in_private_files_only(self, runtime: DockerRuntime) -> None:
        run = self.prepare(runtime, secrets={"KEY": "hunter2"})
        self.is_state(runtime, run, RunState.PREPARED)
        folder = runtime.folder(run)
        holding = {path for path in folder.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()}
        assert {path.name for path in holding} == {"spec.json", "launch.json", "launch.sh"}
        assert {path.stat().st_mode & 0o777 for path in holding} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_a_server_hears_of_a_pull_of_the_digest_and_of_a_refusal(
        self, runtime: DockerRuntime, engine: PlayedEngine, tmp_path: Path
    ) -> None:
        server = FakeServer()
        engine.images.clear()
        engine.pull_fractions = [0.1, 0.4]
        engine.go_on.clear()
        agent = an_agent(server, tmp_path, runtime=runtime)
        held = server.offer(a_spec(runtime="docker", image="train:1", required_features=("docker",)))
        refused = server.offer(a_spec("a2", runtime="docker", image="train:1", mounts=("/etc:/x",), devices=()))
        until(lambda: len(held.reports) >= 2 and refused.reports, agent)
        assert held.reports[-1].prepared_fraction == 0.4
        assert held.states == ["preparing", "preparing"]
        assert (refused.states, refused.reports[0].reason_class) == (["rejected"], ReasonClass.USER)
        engine.go_on.set()
        until(lambda: held.state is AssignmentState.RUNNING, agent)
        assert held.reports[-1].image_digest == IMAGE.id
        assert held.reports[-1].container == "lm-a1-1"
        assert server.sessions[0].features == features_with("docker")
        agent.close()

    def test_an_engine_in_trouble_makes_the_node_unhealthy(
        self, runtime: DockerRuntime, engine: PlayedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loadmaster.agent.runtimes.docker.watch.TROUBLE_AFTER_S", 0.1)
        server = FakeServer(heartbeat_s=0.05)
        agent = an_agent(server, tmp_path, runtime=runtime)
        until(lambda: server.beats and server.beats[-1].healthy, agent)
        engine.down = True
        until(lambda: not server.beats[-1].healthy, agent)
        engine.down = False
        until(lambda: server.beats[-1].healthy, agent)
        agent.close()

    def test_a_refusal_to_start_is_told(
        self, runtime: DockerRuntime, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(name: str) -> None:
            raise EngineRefusedError('could not select device driver "nvidia"')

        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        monkeypatch.setattr(engine, "start", refuse)
        runtime.start(run, guard.boot_s() + 60)
        self.is_state(runtime, run, RunState.ENDED)
        ended = json.loads((runtime.folder(run) / "end.json").read_text())
        assert (ended["started"], ended["blame"]) == (False, "gpu")
