"""The words for bubblewrap and the rights of an isolated run: no root and no bubblewrap needed.

What they keep from real jobs is tested by `test_isolation`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.runtimes import isolation
from loadmaster.agent.runtimes.base import Launch, RunId
from loadmaster.agent.runtimes.isolation import Isolation, make_own, opening_files, owns_checkpoints
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.protocol import ReasonClass
from tests.builders_agent import a_spec

USERS = range(60_000, 60_010)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder of the machine in which the agent has its state, and jobs have data."""
    for name in ("state", "checkpoints", "data"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def program(node: Path) -> str:
    """A bubblewrap of the newest version, which does nothing."""
    path = node / "bwrap"
    path.write_text("#!/bin/sh\necho --size --disable-userns\n")
    path.chmod(0o755)
    return str(path)


def an_isolation(node: Path, program: str = "bwrap", **values: Any) -> Isolation:
    return Isolation(node / "state", program=program, **values)


def a_launch(node: Path, place: str = "", **spec: Any) -> Launch:
    known = a_spec(**{"team": 1, **spec})
    own = place or str(node / "checkpoints" / known.job)
    environment = {"LOADMASTER_CHECKPOINT_DIR": own}
    run = RunId(known.assignment, known.fence)
    return Launch(run, known, environment, 1.0, "boot", checkpoints=node / "checkpoints")


def run_folder(node: Path) -> Path:
    return node / "state" / "runs" / "lm-a1-1"


def position(words: Sequence[str], *expected: str) -> int:
    """Return where these words follow each other; ValueError if nowhere."""
    for at in range(len(words)):
        if tuple(words[at : at + len(expected)]) == expected:
            return at
    raise ValueError(f"{expected} is not among {words}")


class TestWords:
    """Arguments of bubblewrap."""

    @pytest.mark.parametrize(
        "word", ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
    )
    def test_a_job_has_namespaces_of_its_own(self, node: Path, word: str) -> None:
        assert word in an_isolation(node).sandbox_arguments(run_folder(node))

    @pytest.mark.parametrize("closes", [True, False])
    def test_user_namespaces_are_closed_where_bubblewrap_can(
        self, node: Path, *, closes: bool
    ) -> None:
        words = an_isolation(node, closes_namespaces=closes).sandbox_arguments(run_folder(node))
        assert ("--disable-userns" in words) is closes

    def test_shared_memory_is_as_large_as_the_job_may(self, node: Path, program: str) -> None:
        words = an_isolation(node, program).sandbox_arguments(run_folder(node), memory_gb=2.0)
        position(words, "--size", "2000000000", "--tmpfs", "/dev/shm")

    def test_temporary_folders_are_the_jobs_own(self, node: Path) -> None:
        words = an_isolation(node).sandbox_arguments(run_folder(node))
        own = str(run_folder(node) / "tmp")
        for place in ("/tmp", "/var/tmp"):
            position(words, "--bind", own, place)

    def test_a_job_sees_its_own_gpus_and_no_others(
        self, node: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            (node / name).touch()
        monkeypatch.setattr(isolation, "DEV", node)
        words = an_isolation(node).sandbox_arguments(run_folder(node), gpus=["/dev/nvidia1"])
        shown = [to for how, to in zip(words, words[2:], strict=False) if how == "--dev-bind-try"]
        assert sorted(shown) == ["/dev/nvidia1", "/dev/nvidiactl"]

    def test_the_system_is_read_only(self, node: Path) -> None:
        words = an_isolation(node).sandbox_arguments(run_folder(node))
        for path in ("/usr", "/etc", "/bin"):
            position(words, "--ro-bind-try", path, path)

    def test_a_listed_folder_is_writable_only_where_it_says_so(self, node: Path) -> None:
        mounts = (AllowedMount(Path("/data")), AllowedMount(Path("/scratch"), writable=True))
        words = an_isolation(node, mounts=mounts).sandbox_arguments(run_folder(node))
        position(words, "--ro-bind-try", "/data", "/data")
        position(words, "--bind-try", "/scratch", "/scratch")

    def test_private_folders_below_a_listed_one_are_covered(self, node: Path) -> None:
        shown = an_isolation(node, mounts=(AllowedMount(node, writable=True),))
        words = shown.sandbox_arguments(run_folder(node), all_checkpoints=node / "checkpoints")
        for private in (node / "state", node / "checkpoints"):
            covered = position(words, "--tmpfs", str(private))
            assert covered > position(words, "--bind-try", str(node), str(node))
            assert position(words, "--remount-ro", str(private)) > covered

    def test_own_files_are_shown_over_what_covers_the_agents_folder(self, node: Path) -> None:
        shown = an_isolation(node, mounts=(AllowedMount(node),))
        words = shown.sandbox_arguments(
            run_folder(node),
            str(node / "checkpoints/job-1"),
            all_checkpoints=node / "checkpoints",
        )
        own = str(node / "checkpoints/job-1")
        assert position(words, "--bind", own, own) > position(
            words, "--tmpfs", str(node / "checkpoints")
        )

    @pytest.mark.parametrize("place", ["/", "/dev"])
    def test_nothing_is_written_beside_the_jobs_own_places(self, node: Path, place: str) -> None:
        words = an_isolation(node).sandbox_arguments(run_folder(node))
        assert position(words, "--remount-ro", place) > position(words, "--dev", "/dev")

    @pytest.mark.parametrize("name", ["run", "bin", "slurm_script"])
    def test_lease_and_orders_are_read_only(self, node: Path, name: str) -> None:
        path = str(run_folder(node) / name)
        position(
            an_isolation(node).sandbox_arguments(run_folder(node)), "--ro-bind-try", path, path
        )

    @pytest.mark.parametrize("name", ["work", "tmp", "run/progress.jsonl", "run/steps"])
    def test_a_job_writes_what_is_its_own(self, node: Path, name: str) -> None:
        path = str(run_folder(node) / name)
        words = an_isolation(node).sandbox_arguments(run_folder(node))
        own = position(words, "--bind", path, path)
        assert own > position(words, "--ro-bind-try", *[str(run_folder(node) / "run")] * 2)


class TestObjection:
    """Launches that would see what is not theirs."""

    def objection(
        self, node: Path, launch: Launch, outputs: Sequence[str] = (), **values: Any
    ) -> tuple[ReasonClass, str] | None:
        given = an_isolation(node, **values)
        return given.objection(launch, run_folder(node), outputs)

    def test_a_job_with_its_own_checkpoints_is_taken(self, node: Path) -> None:
        assert self.objection(node, a_launch(node)) is None

    @pytest.mark.parametrize("team", [0, len(USERS)])
    def test_a_team_without_a_user_is_refused_as_the_nodes_fault(
        self, node: Path, team: int
    ) -> None:
        refusal = self.objection(node, a_launch(node, team=team), users=USERS)
        assert refusal is not None
        assert refusal[0] is ReasonClass.NODE

    @pytest.mark.parametrize("name", ["checkpoints/job-2", "state", "data/x"])
    def test_checkpoints_of_others_are_refused(self, node: Path, name: str) -> None:
        refusal = self.objection(node, a_launch(node, str(node / name)))
        assert refusal is not None
        assert "checkpoint_place" in refusal[1]

    def test_a_folder_that_no_job_sees_is_refused(self, node: Path) -> None:
        launch = a_launch(node, folder=str(node / "data"))
        refusal = self.objection(node, launch)
        assert refusal is not None
        assert refusal[1].startswith("folder: ")
        shown = (AllowedMount(node / "data"),)
        assert self.objection(node, launch, mounts=shown) is None

    def test_output_goes_where_jobs_may_write_alone(self, node: Path) -> None:
        output = [str(node / "data/log")]
        read_only, writable = (AllowedMount(node / "data", w) for w in (False, True))
        for mounts in ((), (read_only,)):
            refusal = self.objection(node, a_launch(node), output, mounts=mounts)
            assert refusal is not None
            assert refusal[1].startswith("output: ")
        assert self.objection(node, a_launch(node), output, mounts=(writable,)) is None
        own = [str(run_folder(node) / "work/log")]
        assert self.objection(node, a_launch(node), own) is None

    def test_the_agents_folder_is_no_folder_of_a_job(self, node: Path) -> None:
        launch = a_launch(node, folder=str(node / "state/runs"))
        assert self.objection(node, launch, mounts=(AllowedMount(node),)) is not None


class TestRuns:
    """Folders, users and files of a run."""

    def test_only_the_owner_reads_a_runs_folder(self, node: Path) -> None:
        folder = run_folder(node)
        folder.parent.mkdir()
        make_own(folder, None)
        modes = {
            name: (folder / name).stat().st_mode & 0o777 for name in ("", "work", "tmp", "run")
        }
        assert modes == {"": 0o700, "work": 0o700, "tmp": 0o700, "run": 0o755}

    @pytest.mark.parametrize(("users", "mode"), [(None, 0o700), (USERS, 0o711)])
    def test_others_pass_through_the_agents_folder_only_with_users(
        self, node: Path, users: range | None, mode: int
    ) -> None:
        an_isolation(node, users=users).open_way()
        folders = (node / "state", node / "state/runs")
        assert [path.stat().st_mode & 0o777 for path in folders] == [mode, mode]

    def test_each_team_has_a_user_of_its_own(self, node: Path) -> None:
        users = {an_isolation(node, users=USERS).user_of(team) for team in range(len(USERS))}
        assert users == set(USERS)
        assert an_isolation(node).user_of(1) is None

    def test_an_isolated_job_opens_its_output_itself(self, node: Path) -> None:
        outputs = {"stdout": "/data/out"}
        given = {"argv": ["true"], "outputs": outputs, "environment": {}, "cwd": "/"}
        data = an_isolation(node).launch_data(a_launch(node), run_folder(node), given)
        assert data["outputs"] == {}
        assert data["argv"] == opening_files(["true"], outputs)
        assert data["sandbox"]["program"] == "bwrap"
        assert data["environment"]["HOME"] == str(run_folder(node) / "work")

    def test_a_sandbox_hides_the_checkpoints_of_all_jobs(self, node: Path) -> None:
        given = {"argv": ["true"], "outputs": {}, "environment": {}, "cwd": "/"}
        shown = an_isolation(node, mounts=(AllowedMount(node),))
        data = shown.launch_data(a_launch(node), run_folder(node), given)
        position(data["sandbox"]["words"], "--tmpfs", str(node / "checkpoints"))

    @pytest.mark.parametrize(("name", "own"), [("checkpoints/job-1", True), ("data/job-1", False)])
    def test_checkpoints_among_others_are_made_by_the_job(
        self, node: Path, name: str, *, own: bool
    ) -> None:
        assert owns_checkpoints(a_launch(node, str(node / name)), run_folder(node)) is own
