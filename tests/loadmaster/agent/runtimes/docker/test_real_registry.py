"""Images of a real registry: what a job's first launch resolved is what its later ones run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.outcome import outcome_of
from loadmaster.protocol import LaunchSpec, ReasonClass
from tests.builders_docker import Registry, Site, a_docker_spec, a_registry, boot_s, remove_image

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with a_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def a_launch(image: str, digest: str = "") -> LaunchSpec:
    command = ("/bin/busybox", "cat", "/word")
    return a_docker_spec(image=image, image_digest=digest, command=command)


def run_on_a_new_node(folder: Path, image: str, digest: str = "") -> tuple[str, str]:
    """Output of a launch on a node that has no image yet, and the digest it reports."""
    site = Site(folder / f"{image.rpartition('/')[2]}{len(list(folder.iterdir()))}", pull="missing")
    try:
        run = site.prepare(a_launch(image, digest))
        reported = site.runtime.poll(run).image_digest
        site.runtime.start(run, boot_s() + 60)
        site.end(run)
        said = site.output(run)
    finally:
        site.clear()
    remove_image(f"{image.rpartition(':')[0]}@{reported}")
    return said, reported


def test_a_tag_that_moved_in_the_registry_changes_no_later_launch(
    tmp_path: Path, registry: Registry
) -> None:
    name = registry.push("train:1", word="one")
    said, digest = run_on_a_new_node(tmp_path, name)
    assert (said, digest[:7]) == ("one", "sha256:")
    assert registry.push("train:1", word="two") == name
    assert run_on_a_new_node(tmp_path, name, digest) == ("one", digest)
    said_to_another_job, another_digest = run_on_a_new_node(tmp_path, name)
    assert said_to_another_job == "two"
    assert another_digest != digest


def test_a_digest_that_the_registry_does_not_have_is_the_images_fault(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.PULL_PAUSE_S", 0.0)
    name = registry.push("train:2", word="one")
    site = Site(tmp_path, pull="missing")
    try:
        ended = site.end(site.prepare(a_launch(name, f"sha256:{'0' * 64}")))
    finally:
        site.clear()
    outcome = outcome_of(ended)
    assert (ended.started, outcome.reason_class) == (False, ReasonClass.IMAGE)
    assert f"{name}, of which this job uses sha256:0000" in outcome.reason
    assert "cannot be pulled" in outcome.reason
