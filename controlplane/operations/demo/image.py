"""Image of the demo's containers, built once per version of its contents.

Packages are fetched for the base image's Python, so that the build needs no network. Without the
public base image `docker/base-image` makes one.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from django.conf import settings

import loadmaster
from controlplane.operations.embedded.supervisor import EmbeddedError

NAME = "loadmaster-demo"
DOCKERFILE = "docker/demo.Dockerfile"
PUBLIC_BASE = "python:3.12-slim"
OWN_BASE = "loadmaster-base:bookworm"
BASE_VARIABLE = "LOADMASTER_DEMO_BASE"
PULL_S = 180.0
BUILD_S = 900.0
LIBRARIES = ("numpy",)
DATA = ("scikit-learn",)
"""Packages of which the demo reads only data files; their dependencies are left out."""

PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")

_PROBE = (
    "import json, platform, site, sys; print(json.dumps([sys.version_info[:2], platform.machine(),"
    " site.getsitepackages()[0]]))"
)


class NoEngineError(EmbeddedError):
    """No Docker Engine for this user; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Base:
    """Base image: name, id, Python, and folder of installed packages."""

    name: str
    id: str
    python: str
    machine: str
    site: str


def check_engine() -> str:
    instead = "; or run the demo without containers: make demo"
    try:
        answer = _docker("version", "--format", "{{.Server.Version}}", limit_s=30)
    except FileNotFoundError:
        raise NoEngineError(
            f"no docker command found: install Docker (Debian: apt-get install docker.io){instead}"
        ) from None
    if answer.returncode == 0:
        return answer.stdout.strip()
    if "permission denied" in answer.stderr.lower():
        remedy = "let it (usermod -aG docker USER, then log in again) or run this as root"
        raise NoEngineError(f"this user may not speak to the Docker Engine: {remedy}{instead}")
    remedy = "start it (systemctl start docker), or name another one with DOCKER_HOST"
    raise NoEngineError(f"no Docker Engine answers: {remedy}{instead}\n{_last_line(answer.stderr)}")


def demo_image(say: Callable[[str], None]) -> str:
    check_engine()
    base = _probed(_base(say))
    name = f"{NAME}:{loadmaster.__version__}-{_contents(base)}"
    if not _has(name):
        say(f"Building the image {name} from {base.name} (about a minute, once) ...")
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder) / "site"
            _install(base, site, *_requirements())
            _install(base, site, "--no-deps", *DATA)
            shutil.copytree(
                Path(loadmaster.__file__).parent,
                site / "loadmaster",
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            _build(base, Path(folder), name)
    return name


def _base(say: Callable[[str], None]) -> str:
    """Base image: the one named, a present one, the public one, or one made here."""
    named = os.environ.get(BASE_VARIABLE)
    if named:
        if not _has(named):
            pulled = _docker("pull", "--quiet", named, limit_s=BUILD_S)
            _done(pulled, f"{BASE_VARIABLE}: {named} cannot be pulled")
        return named
    for name in (PUBLIC_BASE, OWN_BASE):
        if _has(name):
            return name
    say(f"Pulling {PUBLIC_BASE} ...")
    try:
        if _docker("pull", "--quiet", PUBLIC_BASE, limit_s=PULL_S).returncode == 0:
            return PUBLIC_BASE
    except subprocess.TimeoutExpired:
        pass  # a registry that does not answer is as good as none
    say(
        f"{PUBLIC_BASE} is not to be had; making {OWN_BASE} from Debian's packages (about two"
        " minutes, once) ..."
    )
    script = str(settings.BASE_DIR / "docker" / "base-image")
    made = _run(script, OWN_BASE, limit_s=BUILD_S)
    _done(made, f"no base image can be had; name one that is, with {BASE_VARIABLE}")
    return OWN_BASE


def _probed(name: str) -> Base:
    options = ("--rm", "--network", "none", "--entrypoint", "python3")
    ran = _docker("run", *options, name, "-c", _PROBE, limit_s=120)
    _done(ran, f"the base image {name} has no Python that runs")
    (major, minor), machine, site = json.loads(ran.stdout)
    found = _docker("image", "inspect", "--format", "{{.Id}}", name, limit_s=30)
    return Base(name, found.stdout.strip(), f"{major}.{minor}", machine, site)


def _contents(base: Base) -> str:
    """Digest of everything that goes into the image."""
    digest = hashlib.sha256(base.id.encode())
    files = (settings.BASE_DIR / DOCKERFILE, settings.BASE_DIR / "constraints.txt")
    package = sorted(Path(loadmaster.__file__).parent.rglob("*"))
    sources = (p for p in package if p.is_file() and "__pycache__" not in p.parts)
    for path in (*files, *sources):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(" ".join([*_requirements(), *DATA]).encode())
    return digest.hexdigest()[:12]


def _requirements() -> list[str]:
    own = [r for r in requires("loadmaster") or () if "extra ==" not in r]
    return [*own, *LIBRARIES]


def _install(base: Base, site: Path, *what: str) -> None:
    # Not compiled: what this Python compiles is of no use to the image's.
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:"]
    options += [f"--platform={platform}_{base.machine}" for platform in PLATFORMS]
    options += [f"--target={site}", "--implementation=cp", f"--python-version={base.python}"]
    options += [f"--constraint={settings.BASE_DIR / 'constraints.txt'}"]
    argv = [sys.executable, "-m", "pip", "install", *options, *what]
    fetched = _run(*argv, limit_s=BUILD_S)
    _done(fetched, f"the packages of the demo's image cannot be fetched for Python {base.python}")


def _build(base: Base, folder: Path, name: str) -> None:
    options = ["--file", str(settings.BASE_DIR / DOCKERFILE), "--network", "none", "--tag", name]
    options += ["--build-arg", f"BASE={base.name}", "--build-arg", f"SITE={base.site}"]
    built = _docker("build", *options, str(folder), limit_s=BUILD_S)
    _done(built, f"the image {name} cannot be built")


def _has(name: str) -> bool:
    return _docker("image", "inspect", name, limit_s=30).returncode == 0


def _docker(*words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return _run("docker", *words, limit_s=limit_s)


def _run(*argv: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)


def _done(ran: subprocess.CompletedProcess[str], failure: str) -> None:
    if ran.returncode:
        raise EmbeddedError(f"{failure}: {_last_line(ran.stderr or ran.stdout)}")


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason was given"
