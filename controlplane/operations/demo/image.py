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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from django.conf import settings

import loadmaster
from controlplane.operations.embedded.supervisor import EmbeddedError

NAME = "loadmaster-demo"
"""Name of the image, without its tag."""

DOCKERFILE = "docker/demo.Dockerfile"
"""Path below the project's folder."""

PUBLIC_BASE = "python:3.12-slim"
"""Base image in the public registry."""

OWN_BASE = "loadmaster-base:bookworm"
"""Base image that is built on this machine if the public one cannot be pulled."""

BASE_VARIABLE = "LOADMASTER_DEMO_BASE"
"""Variable of the environment that names another base image."""

PULL_S = 180.0
"""Longest time in seconds to pull the public base image."""

BUILD_S = 900.0
"""Longest time in seconds to build an image, or to fetch what goes into it."""

LIBRARIES = ("numpy",)
"""Packages that the demo's jobs import."""

DATA = ("scikit-learn",)
"""Packages of which the demo reads only data files; their dependencies are left out."""

PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
"""Names of platforms, without machine, whose packages run in the base images."""

_PROBE = (
    "import json, platform, site, sys; print(json.dumps([sys.version_info[:2], platform.machine(),"
    " site.getsitepackages()[0]]))"
)
"""Program that prints [version of Python, machine, folder of packages] of a base image."""


class NoEngineError(EmbeddedError):
    """No Docker Engine for this user; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Base:
    """Base image: name and id.

    `python`: version of its Python, such as 3.12. `machine`: its processors, such as x86_64.
    `site`: its folder of installed packages.
    """

    name: str
    id: str
    python: str
    machine: str
    site: str


def check_engine() -> str:
    """Return the version of the Docker Engine. Raises NoEngineError if none answers this user."""
    alternative = "; or run the demo without containers: make demo"
    try:
        answer = _docker("version", "--format", "{{.Server.Version}}", limit_s=30)
    except FileNotFoundError:
        raise NoEngineError(
            "no docker command found: install Docker (Debian: apt-get install"
            f" docker.io){alternative}"
        ) from None
    if answer.returncode == 0:
        return answer.stdout.strip()
    if "permission denied" in answer.stderr.lower():
        remedy = "run usermod -aG docker USER and log in again, or run this as root"
        raise NoEngineError(f"this user has no right to the Docker Engine: {remedy}{alternative}")
    remedy = "start it (systemctl start docker), or name another one with DOCKER_HOST"
    cause = _last_line(answer.stderr)
    raise NoEngineError(f"no Docker Engine answers: {remedy}{alternative}\n{cause}")


def demo_image(say: Callable[[str], None]) -> str:
    """Return the name of the image, which is built if missing.

    `say` gets lines of progress. Raises NoEngineError, and EmbeddedError if the build fails.
    """
    # 1. The name tells the contents: an image of that name has them.
    check_engine()
    base = _inspected(_base(say))
    name = f"{NAME}:{loadmaster.__version__}-{_digest_of_contents(base)}"
    if _exists(name):
        return name

    # 2. Fetch the packages into a folder, and build the image from it.
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
    """Return the name of a base image that is on this machine; pull or build one if needed.

    Raises EmbeddedError.
    """
    # 1. The one that the environment names.
    named = os.environ.get(BASE_VARIABLE)
    if named:
        if not _exists(named):
            pull = _docker("pull", "--quiet", named, limit_s=BUILD_S)
            _check(pull, f"{BASE_VARIABLE}: {named} cannot be pulled")
        return named

    # 2. One that is here.
    for name in (PUBLIC_BASE, OWN_BASE):
        if _exists(name):
            return name

    # 3. The public one. A registry that does not answer is as good as none.
    say(f"Pulling {PUBLIC_BASE} ...")
    with suppress(subprocess.TimeoutExpired):
        pull = _docker("pull", "--quiet", PUBLIC_BASE, limit_s=PULL_S)
        if pull.returncode == 0:
            return PUBLIC_BASE

    # 4. One of Debian's packages.
    say(
        f"{PUBLIC_BASE} cannot be pulled; building {OWN_BASE} from Debian's packages (about two"
        " minutes, once) ..."
    )
    script = str(settings.BASE_DIR / "docker" / "base-image")
    build = _run(script, OWN_BASE, limit_s=BUILD_S)
    _check(build, f"no base image can be built; name an existing one by {BASE_VARIABLE}")
    return OWN_BASE


def _inspected(name: str) -> Base:
    """Return a base image with its Python, as a container of it reports. Raises EmbeddedError."""
    options = ("--rm", "--network", "none", "--entrypoint", "python3")
    answer = _docker("run", *options, name, "-c", _PROBE, limit_s=120)
    _check(answer, f"the base image {name} has no Python that runs")
    (major, minor), machine, site = json.loads(answer.stdout)
    image = _docker("image", "inspect", "--format", "{{.Id}}", name, limit_s=30)
    return Base(name, image.stdout.strip(), f"{major}.{minor}", machine, site)


def _digest_of_contents(base: Base) -> str:
    """Return the digest of everything that goes into the image."""
    files = [settings.BASE_DIR / DOCKERFILE, settings.BASE_DIR / "constraints.txt"]
    for path in sorted(Path(loadmaster.__file__).parent.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files.append(path)
    digest = hashlib.sha256(base.id.encode())
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(" ".join([*_requirements(), *DATA]).encode())
    return digest.hexdigest()[:12]


def _requirements() -> list[str]:
    """Return the packages that Loadmaster needs without extras, and the demo's libraries."""
    own = []
    for requirement in requires("loadmaster") or ():
        if "extra ==" not in requirement:
            own.append(requirement)
    return [*own, *LIBRARIES]


def _install(base: Base, site: Path, *requirements: str) -> None:
    """Fetch packages for the base image's Python into a folder. Raises EmbeddedError."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Not compiled: what this Python compiles is of no use to the image's.
    command += ["--no-compile", "--only-binary=:all:"]
    command += [f"--platform={platform}_{base.machine}" for platform in PLATFORMS]
    command += [f"--target={site}", "--implementation=cp", f"--python-version={base.python}"]
    command += [f"--constraint={settings.BASE_DIR / 'constraints.txt'}"]
    fetch = _run(*command, *requirements, limit_s=BUILD_S)
    _check(fetch, f"the packages of the demo's image cannot be fetched for Python {base.python}")


def _build(base: Base, folder: Path, name: str) -> None:
    """Build the image from what is in the folder. Raises EmbeddedError."""
    options = ["--file", str(settings.BASE_DIR / DOCKERFILE), "--network", "none", "--tag", name]
    options += ["--build-arg", f"BASE={base.name}", "--build-arg", f"SITE={base.site}"]
    build = _docker("build", *options, str(folder), limit_s=BUILD_S)
    _check(build, f"the image {name} cannot be built")


def _exists(name: str) -> bool:
    """Return True if the Engine has the image."""
    return _docker("image", "inspect", name, limit_s=30).returncode == 0


def _docker(*words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a docker command, at most so long."""
    return _run("docker", *words, limit_s=limit_s)


def _run(*argv: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program, at most so long; return its exit code and output."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)


def _check(process: subprocess.CompletedProcess[str], failure: str) -> None:
    """Raise EmbeddedError with `failure` and the program's last line if it has failed."""
    if process.returncode:
        raise EmbeddedError(f"{failure}: {_last_line(process.stderr or process.stdout)}")


def _last_line(text: str) -> str:
    """Return the last line of a program's output that is not blank."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no reason was given"
