"""The docker runtime over an Engine that is played: no Engine needed."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.outcome import read_samples
from loadmaster.agent.runtimes.base import (
    Launch,
    QuotaError,
    RunId,
    RunState,
    StopBy,
    StopOrder,
)
from loadmaster.agent.runtimes.docker import DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.docker.port import Container, EngineRefusedError
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.features import features_with, limits_of
from loadmaster.protocol import AssignmentState, ReasonClass
from tests.builders_agent import FakeServer, a_spec, an_agent, until
from tests.builders_docker_played import DIGEST, IMAGE, PlayedEngine


class TestRuntime:
    """The runtime's own decisions, with an Engine that fails at will."""

    @pytest.fixture
    def engine(self) -> PlayedEngine:
        return PlayedEngine()

    @pytest.fixture
    def runtime(
        self, tmp_path: Path, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[DockerRuntime]:
        for name, value in (
            ("preparing.PULL_PAUSE_S", 0.0),
            ("preparing.ENGINE_PAUSE_S", 0.05),
            ("watch.LOOK_AGAIN_S", 0.05),
        ):
            monkeypatch.setattr(f"loadmaster.agent.runtimes.docker.{name}", value)
        runtime = DockerRuntime(tmp_path / "runs", engine, "me", DockerOptions())
        yield runtime
        engine.down = False
        runtime.close()

    def prepare(self, runtime: DockerRuntime, grace_s: float = 1.0, **changes: Any) -> RunId:
        spec = a_spec(runtime="docker", **{"image": "train:1", **changes})
        run = RunId(spec.assignment, spec.fence)
        runtime.prepare(Launch(run, spec, {"KEY": "hunter2"}, grace_s, "boot"))
        return run

    def is_state(self, runtime: DockerRuntime, run: RunId, state: RunState) -> None:
        until(lambda: runtime.poll(run).state is state)

    def place_a_link(self, tmp_path: Path) -> Launch:
        """A launch whose mount and checkpoints are where jobs may write, accepted."""
        for name in ("rw/jobs/data", "rw/jobs/ckpt"):
            (tmp_path / name).mkdir(parents=True)
        spec = a_spec(runtime="docker", image="other:1", mounts=(f"{tmp_path}/rw/jobs/data:/data",))
        folders = {"LOADMASTER_CHECKPOINT_DIR": f"{tmp_path}/rw/jobs/ckpt"}
        return Launch(
            RunId(spec.assignment, spec.fence),
            spec,
            folders,
            1.0,
            "boot",
            checkpoints=tmp_path / "shared",
        )

    def test_an_images_user_without_a_number_is_the_images_fault(
        self, tmp_path: Path, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users = {"/etc/passwd": b"ann:x::1600::/:/bin/sh\n"}
        monkeypatch.setattr(engine, "find", lambda name: replace(IMAGE, user="ann"))
        monkeypatch.setattr(engine, "read_file", lambda name, path: users.get(path, b""))
        runs, options = tmp_path / "state" / "runs", DockerOptions(user="image")
        with contextlib.closing(DockerRuntime(runs, engine, "me", options)) as runtime:
            run = self.prepare(runtime)
            self.is_state(runtime, run, RunState.ENDED)
            ended = runtime.poll(run).exit
        assert ended is not None
        assert (ended.blame, ended.started) == (ReasonClass.IMAGE, False)
        assert "give it by number" in ended.error

    @pytest.fixture
    def open_runtime(
        self, tmp_path: Path, runtime: DockerRuntime, engine: PlayedEngine
    ) -> Iterator[DockerRuntime]:
        """One whose jobs may write to a folder."""
        options = DockerOptions(mounts=(AllowedMount(tmp_path / "rw", writable=True),))
        another = DockerRuntime(tmp_path / "state" / "runs", engine, "open", options)
        yield another
        engine.go_on.set()
        another.close()

    @pytest.mark.parametrize(
        ("swapped", "target"),
        [("ckpt", "/"), ("data", "/"), ("ckpt", "{}/rw/else"), ("data", "{}/rw/else")],
    )
    def test_a_folder_swapped_for_a_link_while_the_image_is_pulled_is_not_mounted(
        self,
        tmp_path: Path,
        open_runtime: DockerRuntime,
        engine: PlayedEngine,
        swapped: str,
        target: str,
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
        open_runtime.start(launch.run, guard_orders.boot_s() + 60)
        self.is_state(open_runtime, launch.run, RunState.ENDED)
        ended = open_runtime.poll(launch.run).exit
        assert ended is not None
        assert (ended.started, ended.blame) == (False, ReasonClass.USER)
        assert engine.started == []

    def test_the_guards_of_two_jobs_of_one_image_know_each_its_own_grace(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        for assignment, grace_s in (("a1", 1.0), ("a2", 40.0)):
            run = self.prepare(runtime, grace_s, assignment=assignment)
            self.is_state(runtime, run, RunState.PREPARED)
            assert engine.plans[run.name].entrypoint[4] == str(round(100 * grace_s))

    def test_a_container_made_although_the_call_failed_is_adopted(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
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
        going = Container(
            "removing",
            {"loadmaster.owner": "me", "loadmaster.assignment": "a1", "loadmaster.fence": "1"},
        )
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
        going = Container(
            "removing",
            {"loadmaster.owner": "me", "loadmaster.assignment": "a1", "loadmaster.fence": "1"},
        )
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
        assert "the Engine shows no such container" in ended.error

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

    def test_a_name_taken_by_a_stranger_is_left_alone(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
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
        runtime.start(run, guard_orders.boot_s() + 60)
        until(lambda: engine.started)
        engine.down = True
        until(runtime.trouble)
        runtime.renew(run, guard_orders.boot_s() + 600)
        status = runtime.poll(run)
        assert status.state is RunState.RUNNING
        assert status.lease_until_s is not None
        assert status.lease_until_s > guard_orders.boot_s() + 500
        engine.down = False
        until(lambda: not runtime.trouble())
        assert runtime.poll(run).state is RunState.RUNNING

    def test_the_start_of_the_container_counts_as_set_up(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        runtime.start(run, guard_orders.boot_s() + 60)
        started_at_s = runtime.started_at_s(run)
        assert started_at_s is not None
        lines = [
            {
                "event": "start",
                "at_s": started_at_s + 3.5,
                "step": 0,
                "launch_steps": 0,
                "setup_s": 1.25,
            },
            {"event": "progress", "at_s": started_at_s + 5.0, "step": 1, "launch_steps": 1},
        ]
        runtime.stream(run, "progress").write_text(
            "".join(f"{json.dumps(line)}\n" for line in lines)
        )
        samples, _ = read_samples(runtime, run, 0)
        assert [sample.setup_s for sample in samples] == [pytest.approx(3.5), None]
        until(lambda: engine.started)
        runtime.start(run, guard_orders.boot_s() + 60)
        assert runtime.started_at_s(run) == started_at_s

    def test_a_start_waits_for_an_engine_that_is_away(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        engine.down = True
        runtime.start(run, guard_orders.boot_s() + 60)
        assert runtime.poll(run).state is RunState.RUNNING
        engine.down = False
        until(lambda: engine.started == [run.name])

    def test_a_start_that_finds_no_engine_before_the_lease_ends_never_happens(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.PREPARED)
        engine.down = True
        runtime.start(run, guard_orders.boot_s() - 1)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert (ended.started, ended.stopped_by, ended.error) == (False, StopBy.LEASE, "no answer")
        assert (runtime.folder(run) / "guard" / "guard.pid").exists()

    def test_a_preparation_goes_on_after_a_restart(
        self, runtime: DockerRuntime, engine: PlayedEngine, tmp_path: Path
    ) -> None:
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

    def test_a_launch_that_is_called_off_leaves_nothing(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
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

    def test_a_failed_pull_is_tried_again_and_then_the_images_fault(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        engine.images.clear()
        engine.pull_error = "no such host"
        run = self.prepare(runtime)
        self.is_state(runtime, run, RunState.ENDED)
        ended = runtime.poll(run).exit
        assert ended is not None
        assert ended.blame is ReasonClass.IMAGE
        assert len(engine.pulls) == 3

    def test_a_pinned_image_is_pulled_by_its_digest(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.prepare(runtime, image_digest=DIGEST)
        self.is_state(runtime, run, RunState.PREPARED)
        assert engine.pulls == [f"train@{DIGEST}"]

    def test_a_stray_without_a_folder_is_killed_when_it_is_stopped(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
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
        holding = {
            path for path in folder.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()
        }
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
        held = server.offer(
            a_spec(runtime="docker", image="train:1", required_features=("docker",))
        )
        refused = server.offer(
            a_spec("a2", runtime="docker", image="train:1", mounts=("/etc:/x",), devices=())
        )
        until(lambda: held.reports and held.reports[-1].prepared_fraction == 0.4, agent)
        until(lambda: refused.reports, agent)
        assert set(held.states) == {"preparing"}
        assert (refused.states, refused.reports[0].reason_class) == (["rejected"], ReasonClass.USER)
        engine.go_on.set()
        until(lambda: held.state is AssignmentState.RUNNING, agent)
        assert held.reports[-1].image_digest == IMAGE.id
        assert held.reports[-1].container == "lm-a1-1"
        assert server.sessions[0].features == features_with("docker", *runtime.features)
        agent.close()

    def test_an_engine_in_trouble_makes_the_node_unhealthy(
        self,
        runtime: DockerRuntime,
        engine: PlayedEngine,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
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
        runtime.start(run, guard_orders.boot_s() + 60)
        self.is_state(runtime, run, RunState.ENDED)
        ended = json.loads((runtime.folder(run) / "end.json").read_text())
        assert (ended["started"], ended["blame"]) == (False, "gpu")

    def run(self, runtime: DockerRuntime, **spec: Any) -> RunId:
        """Return a launch that runs with 2 cores, and whose quota the runtime has read."""
        run = self.prepare(runtime, cores=2.0, **spec)
        self.is_state(runtime, run, RunState.PREPARED)
        runtime.start(run, guard_orders.boot_s() + 60)
        until(lambda: runtime.quota(run) is not None)
        return run

    def test_a_seats_quota_is_the_one_in_force(self, runtime: DockerRuntime) -> None:
        assert runtime.quota(self.run(runtime)) == 2.0
        assert runtime.quota(self.run(runtime, assignment="a2", cpu_quota=1.5)) == 1.5

    def test_a_quota_is_changed_while_the_job_runs(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.run(runtime)
        runtime.set_quota(run, 0.5)
        until(lambda: runtime.quota(run) == 0.5)
        assert engine.quotas_us[run.name] == 50_000

    def test_a_refused_quota_leaves_the_one_in_force(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.run(runtime)
        engine.refuses_quotas = True
        runtime.set_quota(run, 0.5)
        until(lambda: engine.refused_quotas == [run.name])
        assert runtime.quota(run) == 2.0

    @pytest.mark.parametrize("cores", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_quota_of_no_cores_is_refused(self, runtime: DockerRuntime, cores: float) -> None:
        run = self.run(runtime)
        with pytest.raises(QuotaError, match="cpu_quota: name a number of cores above 0"):
            runtime.set_quota(run, cores)

    def test_a_container_that_does_not_run_gets_no_quota(
        self, runtime: DockerRuntime, engine: PlayedEngine
    ) -> None:
        run = self.run(runtime)
        engine.kill(run.name)
        self.is_state(runtime, run, RunState.ENDED)
        with pytest.raises(QuotaError, match=f"{run.name} has no container that runs"):
            runtime.set_quota(run, 1.0)

    def test_features_name_what_containers_limit(self, runtime: DockerRuntime) -> None:
        assert limits_of(runtime.features) == ("memory", "processes", "cores")
