"""The demo's image: what is said where no engine answers, and that it is built only when something
in it is new.
"""

import json
from pathlib import Path

import pytest

from controlplane.operations.demo import image
from controlplane.operations.demo.image import NoEngineError, check_engine, demo_image
from controlplane.operations.demo.scenario import JOBS

DOCKER = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1 $2" in
  "version --format") {version};;
  "image inspect") case "$3$5" in
    *loadmaster-demo:*) test -e {folder}/built;;
    *{base}*) echo sha256:1;;
    *) exit 1;;
  esac;;
  "run --rm") echo '{probe}';;
  "build --file") touch {folder}/built;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker command whose engine has the public base image; its folder."""
    write(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv(image.BASE_VARIABLE, raising=False)
    return tmp_path


def write(folder: Path, version: str = "echo 20.10") -> None:
    """The command, with what it says to `docker version`."""
    probe = json.dumps([[3, 12], "x86_64", "/usr/local/lib/python3.12/site-packages"])
    script = folder / "docker"
    script.write_text(
        DOCKER.format(folder=folder, version=version, base=image.PUBLIC_BASE, probe=probe)
    )
    script.chmod(0o755)


def test_an_engine_that_answers_is_known_by_its_version(docker: Path) -> None:
    assert check_engine() == "20.10"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("permission denied while trying to connect", "usermod -aG docker"),
        ("Cannot connect to the Docker daemon", "systemctl start docker"),
    ],
)
def test_where_no_engine_answers_the_remedy_is_named(docker: Path, said: str, remedy: str) -> None:
    write(docker, f"echo '{said}' >&2; exit 1")
    with pytest.raises(NoEngineError, match=remedy) as refused:
        demo_image(print)
    assert "make demo" in str(refused.value)


def test_where_there_is_no_docker_at_all_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoEngineError, match="install Docker"):
        check_engine()


def test_the_image_is_built_once_and_named_by_version_and_contents(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(image, "_install", lambda base, *_: installed.append(base.python))
    names = [demo_image(print), demo_image(print)]
    assert installed == ["3.12", "3.12"]  # libraries and data, each once
    assert names[0] == names[1]
    assert names[0].startswith("loadmaster-demo:")
    builds = [
        line for line in (docker / "calls").read_text().splitlines() if line.startswith("build ")
    ]
    assert len(builds) == 1
    assert "BASE=python:3.12-slim" in builds[0]
    assert "SITE=/usr/local/lib/python3.12/site-packages" in builds[0]


def test_a_demo_job_is_a_process_or_a_container_of_the_image() -> None:
    assert JOBS[0].request()["runtime"] == "process"
    inside = JOBS[0].request("loadmaster-demo:1")
    assert (inside["runtime"], inside["image"]) == ("docker", "loadmaster-demo:1")
