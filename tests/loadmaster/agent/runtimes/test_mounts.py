"""Which folders of the host containers may have: no Engine needed."""

from pathlib import Path

import pytest

from loadmaster.agent.runtimes.mounts import (
    AllowedMount,
    MountRules,
    checkpoint_problem,
    job_mounts,
    make_folder,
    private_folders,
)


def test_what_is_allowed_is_mounted_as_it_is_allowed(tmp_path: Path) -> None:
    for name in ("data/set", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    allowed = (AllowedMount(tmp_path / "data"), AllowedMount(tmp_path / "scratch", writable=True))
    found = job_mounts(
        (f"{tmp_path}/data/set:/set:ro", f"{tmp_path}/scratch:/scratch"), MountRules(allowed)
    )
    assert [(m.source, m.target, m.writable) for m in found] == [
        (f"{tmp_path}/data/set", "/set", False),
        (f"{tmp_path}/scratch", "/scratch", True),
    ]


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ("{}/data:/d", "read-only"),
        ("{}/other:/d:ro", "ask its operator"),
        ("{}/data-more:/d:ro", "ask its operator"),
        ("{}/data/link:/d:ro", "ask its operator"),
        ("{}/data/none:/d:ro", "does not exist"),
        ("{}/data:/loadmaster/run:ro", "is reserved"),
        ("{}/data:/loadmaster:ro", "is reserved"),
        ("{}/data:/:ro", "is reserved"),
        ("{}/data:/x/../loadmaster:ro", "is reserved"),
        ("data:/d:ro", "must be"),
    ],
)
def test_what_is_not_allowed_is_refused_with_field_and_remedy(
    tmp_path: Path, wish: str, word: str
) -> None:
    for name in ("data", "other", "data-more"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "link").symlink_to("/etc")
    with pytest.raises(ValueError, match=word) as refusal:
        job_mounts((wish.format(tmp_path),), MountRules((AllowedMount(tmp_path / "data"),)))
    assert str(refusal.value).startswith("mounts[0]")


def test_checkpoints_stay_in_the_jobs_own_folder_or_where_the_operator_lets_jobs_write(
    tmp_path: Path,
) -> None:
    own = tmp_path / "runs/lm-a-1/checkpoints"
    places = MountRules(
        (AllowedMount(tmp_path / "rw", writable=True), AllowedMount(tmp_path / "ro")),
        shared=tmp_path / "shared",
    )
    for good in (tmp_path / "shared/job-1", own, tmp_path / "rw" / "x"):
        assert checkpoint_problem(str(good), "job-1", own, places) == ""
    others = (
        "shared",
        "shared/job-2",
        "shared/job-1/../job-2",
        "shared/job-1/x",
        "runs/lm-b-1/checkpoints",
        "shared/../x",
    )
    for bad in (*others, "rw", "ro/x", "/etc"):
        assert "checkpoint_place" in checkpoint_problem(str(tmp_path / bad), "job-1", own, places)


@pytest.mark.parametrize(
    "wish",
    [
        "state",
        "state/runs",
        "state/runs/lm-b-1",
        "state/node.json",
        "shared",
        "shared/job-2",
        "engine.sock",
        ".",
        "link",
    ],
)
def test_what_is_the_agents_own_is_never_mounted_whatever_the_operator_allows(
    tmp_path: Path, wish: str
) -> None:
    for name in ("state/runs/lm-b-1", "shared/job-2"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("state/node.json", "engine.sock"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("state")
    private = private_folders(tmp_path / "state", f"unix://{tmp_path}/engine.sock")
    places = MountRules(
        (AllowedMount(tmp_path.parent, writable=True),), private, tmp_path / "shared"
    )
    for mode in ("", ":ro"):
        with pytest.raises(ValueError, match="Engine; mount another folder"):
            job_mounts((f"{tmp_path / wish}:/x{mode}",), places)
    assert checkpoint_problem(f"{tmp_path / wish}", "job-1", tmp_path / "none", places) != ""


def test_the_engines_usual_socket_is_never_mounted(tmp_path: Path) -> None:
    places = MountRules((AllowedMount(Path("/run"), writable=True),), private_folders(tmp_path))
    for wish in ("/run", "/run/docker.sock", "/var/run/docker.sock"):
        with pytest.raises(ValueError, match="Engine; mount another folder"):
            job_mounts((f"{wish}:/x",), places)


def test_folders_are_made_through_no_link(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b")
    assert not make_folder(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="directory"):
        make_folder(tmp_path / "link" / "c")
    assert not (tmp_path / "a" / "c").exists()
