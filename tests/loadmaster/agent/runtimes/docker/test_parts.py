"""The docker runtime's pure parts: no Engine needed."""

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.config import AgentConfig, ConfigError, read_config
from loadmaster.agent.guarding import guard
from loadmaster.agent.node.machine import Identity
from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker import DockerOptions, OptionError
from loadmaster.agent.runtimes.docker.engine import host_config, stats_of
from loadmaster.agent.runtimes.docker.plan import (
    ContainerPlan,
    ContainerRequest,
    Task,
    container_plan,
    job_environment,
    launch_script,
)
from loadmaster.agent.runtimes.docker.port import Container, Stats
from loadmaster.agent.runtimes.docker.pulling import PullProgress, digest_of, pinned, repository_of
from loadmaster.agent.runtimes.docker.verdict import end_of, start_failure
from loadmaster.agent.runtimes.limits import memory_bytes
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.agent.start import EXIT_CONFIG, runtime_of, serve
from loadmaster.features import features_with
from loadmaster.files import open_plain, read_object
from loadmaster.protocol import ReasonClass
from tests.builders_agent import a_spec
from tests.builders_docker_played import DIGEST


class TestOptions:
    def test_text_and_yaml_say_the_same(self) -> None:
        from_text = DockerOptions.read(
            {
                "mounts": "/data,/scratch:rw",
                "pids": "10",
                "read-only": "true",
                "pull": "never",
                "shm_gb": "2",
            }
        )
        from_yaml = DockerOptions.read(
            {
                "mounts": ["/data", "/scratch:rw"],
                "pids": 10,
                "read_only": True,
                "pull": "never",
                "shm_gb": 2,
            }
        )
        assert from_text == from_yaml
        assert from_text.mounts == (
            AllowedMount(Path("/data")),
            AllowedMount(Path("/scratch"), writable=True),
        )

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
    def test_a_wrong_one_is_named_with_what_would_be_right(
        self, given: dict[str, Any], word: str
    ) -> None:
        with pytest.raises(OptionError, match=word):
            DockerOptions.read(given)

    @pytest.mark.parametrize(
        ("user", "expected"),
        [("", (1000, 1000)), ("1234", (1234, 1234)), ("12:34", (12, 34)), ("image", None)],
    )
    def test_jobs_of_a_root_agent_are_not_root(
        self, user: str, expected: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 0)
        assert DockerOptions.read({"user": user}).identity() == expected

    def test_an_ordinary_users_agent_runs_jobs_as_that_user(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 1001)
        monkeypatch.setattr(os, "getgid", lambda: 1002)
        assert DockerOptions.read({}).identity() == (1001, 1002)
        with pytest.raises(OptionError, match="only an agent that runs as root"):
            DockerOptions.read({"user": "1000"})

    def test_the_agents_settings_hold_them(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.yaml"
        path.write_text(
            "server: http://s\nruntime: docker\ndocker: {pull: never, mounts: [/data]}\n"
        )
        assert read_config({"config": path}, {}).docker == {"pull": "never", "mounts": ["/data"]}
        given = {"server": "http://s", "docker": ["pull=never", "mounts=/data"]}
        assert read_config(given, {"LOADMASTER_RUNTIME": "docker"}).docker == {
            "pull": "never",
            "mounts": "/data",
        }
        found = read_config({"server": "http://s"}, {"LOADMASTER_DOCKER": "pull=never; user=12:34"})
        assert found.docker == {"pull": "never", "user": "12:34"}
        with pytest.raises(ConfigError, match="NAME=VALUE"):
            read_config({"server": "http://s", "docker": ["pull"]}, {})


class TestStart:
    def test_an_agent_whose_engine_does_not_answer_says_what_to_do(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = AgentConfig(
            "http://127.0.0.1:9",
            tmp_path,
            runtime="docker",
            docker={"host": f"unix://{tmp_path}/none.sock"},
        )
        assert serve(config, threading.Event()) == EXIT_CONFIG
        assert "no Docker Engine answers at" in caplog.text
        assert "systemctl start docker" in caplog.text

    def test_certificates_that_are_not_there_are_told_with_their_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        config = AgentConfig("http://s", tmp_path, runtime="docker")
        with pytest.raises(ConfigError, match=f"DOCKER_CERT_PATH: {tmp_path}: .* or unset it"):
            runtime_of(config, Identity("m", "b", "h"), threading.Event())

    def test_a_wrong_option_is_a_wrong_setting(self, tmp_path: Path) -> None:
        config = AgentConfig("http://s", tmp_path, runtime="docker", docker={"pull": "x"})
        with pytest.raises(ConfigError, match=r"docker\.pull"):
            runtime_of(config, Identity("m", "b", "h"), threading.Event())

    def test_a_node_offers_the_runtime_of_its_agent_alone(self) -> None:
        assert {"docker", "process"} & set(features_with("docker")) == {"docker"}
        assert {"docker", "process"} & set(features_with("process")) == {"process"}
        assert "lease_guard" in features_with("docker")


class TestPlan:
    def plan(self, **changes: Any) -> ContainerPlan:
        request = ContainerRequest(5.0, "boot", gpus=("GPU-1",), checkpoints="/shared/job-1")
        options = DockerOptions(limit_cores=changes.pop("limit_cores", True))
        folder, spec = Path("/runs/lm-a1-3"), a_spec(**changes)
        task = Task(RunId("a1", 3), spec, request, folder, "me", options)
        return container_plan(task, user=(7, 8), mounts=())

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
        assert writable == {
            "/loadmaster/run/progress.jsonl",
            "/loadmaster/guard",
            "/loadmaster/work",
            "/loadmaster/checkpoints",
        }

    def test_cores_and_memory_are_limits(self) -> None:
        assert self.plan(cores=1.5).cpu_quota_us == 150_000
        assert self.plan(cores=1.5, cpu_quota=0.5).cpu_quota_us == 50_000
        assert self.plan(cores=1.5, limit_cores=False).cpu_quota_us is None
        assert self.plan().cpu_quota_us is None
        assert memory_bytes(1.0) == 1_050_000_000
        assert memory_bytes(0.0) is None

    def test_the_engine_is_asked_for_no_privilege_and_for_gpus_by_uuid(self) -> None:
        config = host_config(self.plan(memory_gb=1.0, cores=2.0), DockerOptions())
        assert (config["privileged"], config["cap_drop"], config["security_opt"]) == (
            False,
            ["ALL"],
            ["no-new-privileges"],
        )
        assert (config["mem_limit"], config["memswap_limit"], config["cpu_quota"]) == (
            1_050_000_000,
            1_050_000_000,
            200_000,
        )
        assert config["device_requests"][0]["DeviceIDs"] == ["GPU-1"]
        assert "device_requests" not in host_config(replace(self.plan(), gpus=()), DockerOptions())

    def test_a_job_sees_its_folders_by_the_names_they_have_inside(self) -> None:
        found = job_environment(
            {
                "LOADMASTER_CHECKPOINT_DIR": "/host/ckpt",
                "LOADMASTER_RUN_DIR": "/host/run",
                "HOME": "/mine",
            }
        )
        assert (found["LOADMASTER_CHECKPOINT_DIR"], found["LOADMASTER_RUN_DIR"]) == (
            "/loadmaster/checkpoints",
            "/loadmaster/run",
        )
        assert (found["HOME"], job_environment({})["HOME"]) == ("/mine", "/loadmaster/work")

    def test_the_launch_script_says_any_text_exactly(self, tmp_path: Path) -> None:
        odd = 'it\'s $HOME "`x`"\n\\ end'
        script = launch_script(
            ("/usr/bin/env", "printf", "%s|%s", odd, ""), {"A": odd}, {}
        ).replace("/loadmaster/guard", str(tmp_path))
        (tmp_path / "launch.sh").write_text(script)
        done = subprocess.run(
            ["sh", "-c", f". {tmp_path}/launch.sh"], capture_output=True, text=True, check=True
        )
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
        told = [progress.update(event) for event in events]
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
    TOLD = {
        "ended_at_s": 49.0,
        "started": True,
        "exit_code": 1,
        "stopped_by": None,
        "killed": False,
        "oom": False,
        "error": "",
    }

    def test_the_guards_word_holds(self) -> None:
        ended = end_of(self.ENDED, self.TOLD, True)
        assert (ended.exit_code, ended.ended_at_s, ended.oom) == (1, 49.0, False)

    def test_the_engine_knows_of_memory(self) -> None:
        assert end_of(replace(self.ENDED, oom=True), self.TOLD, True).oom
        assert not end_of(replace(self.ENDED, oom=True), {**self.TOLD, "exit_code": 0}, True).oom
        assert not end_of(
            replace(self.ENDED, oom=True), {**self.TOLD, "stopped_by": "preempt"}, True
        ).oom

    @pytest.mark.parametrize(
        "nonsense",
        [
            {"ended_at_s": "x"},
            {"ended_at_s": 1, "exit_code": [1]},
            {"ended_at_s": 1, "stopped_by": "me"},
            {"ended_at_s": float("inf"), "exit_code": 1},
            {"ended_at_s": float("nan"), "exit_code": 1},
            {"ended_at_s": 1, "exit_code": 10**22},
            {"ended_at_s": 1, "exit_code": -(2**31) - 1},
        ],
    )
    def test_a_senseless_word_counts_as_none(self, nonsense: dict[str, Any]) -> None:
        ended = end_of(replace(self.ENDED, exit_code=137), nonsense, True)
        assert ended.exit_code is None
        assert "killed" in ended.error

    def test_a_guard_that_was_killed_is_the_nodes_fault_and_memory_the_jobs(self) -> None:
        killed = end_of(replace(self.ENDED, exit_code=137), None, True)
        assert outcome_of(killed).reason_class is ReasonClass.NODE
        assert (
            outcome_of(
                end_of(replace(self.ENDED, exit_code=137, oom=True), None, True)
            ).reason_class
            is ReasonClass.OOM
        )

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
    memory = {"usage": 100, "stats": {"total_inactive_file": 30}}
    cpu = {"cpu_usage": {"total_usage": 2e9}, "throttling_data": {"throttled_time": 1.5e9}}
    assert stats_of({"memory_stats": memory, "cpu_stats": cpu}) == Stats(2.0, 70, 1.5)
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
