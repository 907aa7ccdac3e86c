"""deploy/pin-images against a real registry: a tag that moves later changes nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.builders_docker import ROOT, Registry, a_registry

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

SERVICES = {"postgres": "postgres", "redis": "redis", "proxy": "nginx"}


def a_site(folder: Path, registry: Registry) -> dict[str, str]:
    """Lay out the compose file, whose images lie in the registry; their names there."""
    (folder / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "pin-images", folder / "deploy")
    compose, images = (ROOT / "docker-compose.yml").read_text(), {}
    named = r"\{LOADMASTER_(?:POSTGRES|REDIS|NGINX|PYTHON)_IMAGE:-([^}]+)\}"
    for name in re.findall(named, compose):
        images[name.partition(":")[0]] = registry.push(name, word="pinned")
        compose = compose.replace(f":-{name}}}", f":-{registry.address}/{name}}}")
    (folder / "docker-compose.yml").write_text(compose)
    subprocess.run([ROOT / "deploy" / "make-env", "localhost"], cwd=folder, check=True)
    return images


def run(folder: Path, *words: str) -> str:
    return subprocess.check_output(words, cwd=folder, text=True)


def test_every_start_runs_the_images_that_were_pinned(tmp_path: Path) -> None:
    with a_registry(tmp_path) as registry:
        images = a_site(tmp_path, registry)
        run(tmp_path, "deploy/pin-images")
        for name in images:
            registry.push(images[name].removeprefix(f"{registry.address}/"), word="later")
        services = yaml.safe_load(run(tmp_path, "docker-compose", "config"))["services"]
        pinned = {name: services[name]["image"] for name in SERVICES}
        for service, name in SERVICES.items():
            assert re.fullmatch(f"{registry.address}/{name}@sha256:[0-9a-f]{{64}}", pinned[service])
            look = ("/bin/busybox", "cat", "/word")
            assert run(tmp_path, "docker", "run", "--rm", pinned[service], *look) == "pinned"
