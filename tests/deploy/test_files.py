"""What is handed to operators holds: units, examples without secrets, scripts that refuse, one
entrypoint, a wheel for nodes.
"""

import configparser
import os
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.fernet import Fernet
from django.conf import settings

from controlplane.execution.protocol.calls import ENDPOINTS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def unit(path: Path) -> configparser.RawConfigParser:
    """The unit's sections; a key may stand once."""
    parser = configparser.RawConfigParser(strict=True, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep names as they are
    parser.read_string(path.read_text())
    return parser


def run(*command: object, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script; never raises."""
    given = {
        name: value
        for name, value in os.environ.items()
        if name == "PATH" or name.startswith("PIP_")
    } | env
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_units_start_what_exists_and_lock_down_what_they_can(path: Path) -> None:
    service = unit(path)["Service"]
    command = service["ExecStart"].split()
    if path.name == "loadmaster-agent.service":
        assert command == ["/opt/loadmaster/bin/loadmaster", "agent"]
    else:
        assert command[0] == "/opt/loadmaster/source/deploy/entrypoint"
        assert f"  {command[1]})" in (DEPLOY / "entrypoint").read_text()
    assert service["User"] == "loadmaster"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""


def test_an_agents_jobs_outlive_its_service() -> None:
    service = unit(DEPLOY / "loadmaster-agent.service")["Service"]
    assert (service["KillMode"], service["OOMPolicy"], service["Restart"]) == (
        "process",
        "continue",
        "always",
    )
    assert not {"PrivateTmp", "PrivateDevices", "MemoryDenyWriteExecute"} & set(service)


@pytest.mark.slow
@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_systemd_finds_nothing_wrong_with_the_units(path: Path, tmp_path: Path) -> None:
    for other in UNITS:
        (tmp_path / other.name).write_text(
            re.sub(r"(ExecStart=|WorkingDirectory=)/\S+", _stand_in, other.read_text())
        )
    name = path.name.replace("@.", "@1.")
    done = run(
        "systemd-analyze",
        "verify",
        "--recursive-errors=no",
        "--man=no",
        tmp_path / name,
        SYSTEMD_UNIT_PATH=f"{tmp_path}:",
    )
    assert done.returncode == 0, done.stderr
    assert not [
        line for line in done.stderr.splitlines() if str(tmp_path) in line or "loadmaster" in line
    ], done.stderr


def _stand_in(found: re.Match[str]) -> str:
    return f"{found[1]}{'/bin/true' if found[1].startswith('Exec') else '/'}"


@pytest.mark.parametrize("name", ["env.example", "server.env.example", "agent.env.example"])
def test_examples_of_environments_hold_no_secret(name: str) -> None:
    values = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE))
    assert values
    secret = (
        "SECRET_KEY",
        "LOADMASTER_SECRETS_KEY",
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "DATABASE_URL",
        "LOADMASTER_TOKEN",
    )
    filled = {key: value for key, value in values.items() if key in secret and value.strip("'")}
    assert filled == {}


def test_a_shell_reads_the_servers_settings_as_systemd_does(tmp_path: Path) -> None:
    text = (DEPLOY / "server.env.example").read_text()
    odd = "postgres://u:$abc@h/db?sslmode=verify-full&sslrootcert=/x"
    (tmp_path / "env").write_text(text.replace("DATABASE_URL=''", f"DATABASE_URL='{odd}'"))
    done = run("sh", "-euc", "set -a; . ./env; printenv", cwd=tmp_path)
    assert f"DATABASE_URL={odd}" in done.stdout.splitlines()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"\w+='[^'\\]*'", line)] == []


def test_make_env_writes_fresh_secrets_that_only_its_owner_reads_and_never_overwrites_them(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    assert run(DEPLOY / "make-env", "loadmaster.example", first).returncode == 0
    assert run(DEPLOY / "make-env", "loadmaster.example", second).returncode == 0
    values = dict(re.findall(r"^(\w+)=(.*)$", first.read_text(), re.MULTILINE))
    assert first.stat().st_mode & 0o777 == 0o600
    assert len(values["SECRET_KEY"]) >= 50
    Fernet(values["LOADMASTER_SECRETS_KEY"])
    assert not set(values.values()) & set(
        dict(re.findall(r"^(\w+)=(.*)$", second.read_text(), re.MULTILINE)).values()
    ) - {"loadmaster.example"}
    before = first.read_text()
    again = run(DEPLOY / "make-env", "loadmaster.example", first)
    assert again.returncode != 0
    assert "is there already" in again.stderr
    assert first.read_text() == before


@pytest.mark.parametrize("host", ["", "a b", "a;b", "$(id)"])
def test_make_env_refuses_what_is_no_host(tmp_path: Path, host: str) -> None:
    assert run(DEPLOY / "make-env", host, tmp_path / "env").returncode == 64
    assert not (tmp_path / "env").exists()


def test_make_certificate_makes_one_that_strict_clients_accept(tmp_path: Path) -> None:
    done = run(DEPLOY / "make-certificate", "loadmaster.example", "192.0.2.7", FOLDER=str(tmp_path))
    assert done.returncode == 0, done.stderr
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["loadmaster.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    strict = run(
        "openssl", "verify", "-x509_strict", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt"
    )
    assert strict.returncode == 0, strict.stdout + strict.stderr
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    assert run(DEPLOY / "make-certificate", "other.example", FOLDER=str(tmp_path)).returncode != 0


def test_the_entrypoint_says_what_it_can_do() -> None:
    done = run(DEPLOY / "entrypoint", "dance")
    assert done.returncode == 64
    assert "usage: entrypoint web|worker|beat|migrate|manage" in done.stderr


def test_migrations_wait_for_the_database_and_no_time_limit_ends_that(tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = run(DEPLOY / "entrypoint", "migrate", PATH=f"{tmp_path}:{os.environ['PATH']}")
    waits, migrates = "manage.py wait_for_database", "manage.py migrate --noinput"
    assert done.stdout.splitlines() == [waits, migrates]
    service = unit(DEPLOY / "loadmaster-migrate.service")["Service"]
    assert service["TimeoutStartSec"] == "infinity"


def test_health_is_told_by_a_file_that_is_still_being_touched(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    assert run(DEPLOY / "entrypoint", "healthy", LOADMASTER_ALIVE_FILE=str(alive)).returncode != 0
    alive.touch()
    assert run(DEPLOY / "entrypoint", "healthy", LOADMASTER_ALIVE_FILE=str(alive)).returncode == 0
    os.utime(alive, (1e9, 1e9))
    assert run(DEPLOY / "entrypoint", "healthy", LOADMASTER_ALIVE_FILE=str(alive)).returncode != 0


def test_compose_keeps_every_port_but_the_proxys_to_itself_and_waits_for_migrations() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    for name in ("web", "worker", "beat"):
        assert services[name]["depends_on"]["migrate"] == {
            "condition": "service_completed_successfully"
        }
    assert [name for name, service in services.items() if "container_name" in service] == []


def test_every_container_is_hardened() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert [name for name, service in services.items() if "cap_add" in service] == ["proxy"]
    assert (services["postgres"]["user"], services["redis"]["user"]) == ("postgres", "redis")


def test_the_proxy_passes_agents_bodies_on_as_they_come_and_has_bounded_room_for_others() -> None:
    said = (DEPLOY / "nginx.conf").read_text()
    agents = said.split("location /api/agent/ {")[1].split("}")[0]
    largest = max(endpoint.most_bytes for endpoint in ENDPOINTS)
    for line in (
        f"client_max_body_size {largest // 2**20}m;",
        "proxy_request_buffering off;",
        "limit_conn agents ",
    ):
        assert line in agents
    proxy = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["proxy"]
    assert proxy["tmpfs"] == ["/tmp:size=512m"]


def test_every_container_has_limits_of_memory_and_processes() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    unbounded = [
        name
        for name, service in services.items()
        if "mem_limit" not in service or not service.get("pids_limit", 0) > 0
    ]
    assert unbounded == []


@pytest.mark.docker
def test_compose_takes_the_limits_as_they_are_written(tmp_path: Path) -> None:
    for name in ("docker-compose.yml", "deploy/make-env"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["deploy/make-env", "lab.example"], cwd=tmp_path, check=True)
    read = ["docker-compose", "config"]
    text = subprocess.check_output(read, cwd=tmp_path, env=bare(), text=True)
    services = yaml.safe_load(text)["services"]
    assert str(services["web"]["mem_limit"]) in ("3g", "3221225472")
    assert services["proxy"]["environment"]["LOADMASTER_HOST"] == "lab.example"


def test_proxy_redirects_to_its_own_names_alone() -> None:
    said = (DEPLOY / "nginx.conf").read_text()
    others = said.split("listen 8080 default_server;")[1].split("}")[0]
    assert "return 444;" in others
    assert said.count("return 308 ") == 1
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["proxy"]
    assert "server_name LOADMASTER_HOST;" in said
    assert "s/server_name LOADMASTER_HOST;/" in command["command"][-1]


def bare() -> dict[str, str]:
    """Variables of this process without our own."""
    return {n: v for n, v in os.environ.items() if not n.startswith("LOADMASTER_")}


def test_redis_has_a_password_that_no_command_line_shows() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "${REDIS_PASSWORD:?" in services["web"]["environment"]["REDIS_URL"]
    assert "REDIS_PASSWORD" not in str(services["redis"]["command"])
    assert "requirepass $$REDISCLI_AUTH" in services["redis"]["command"][-1]


DOCKER = """#!/bin/sh
case $1 in
  pull) [ "$3" != "$UNKNOWN" ] ;;
  image) for image; do :; done
    [ "$image" = "$LOCAL" ] || echo "${image%:*}@sha256:$(printf %064d 7)" ;;
esac
"""


@pytest.fixture
def registry(tmp_path: Path) -> str:
    """A path of programs whose docker knows every image."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def test_images_are_pinned_by_the_digests_that_were_pulled(tmp_path: Path, registry: str) -> None:
    env = tmp_path / "env"
    env.write_text("SECRET_KEY=x\nLOADMASTER_REDIS_IMAGE=redis@sha256:old\n")
    env.chmod(0o600)
    done = run(DEPLOY / "pin-images", env, PATH=registry)
    assert done.returncode == 0, done.stderr
    digest = f"@sha256:{7:064d}"
    assert sorted(env.read_text().splitlines()) == [
        f"LOADMASTER_NGINX_IMAGE=nginx{digest}",
        f"LOADMASTER_POSTGRES_IMAGE=postgres{digest}",
        f"LOADMASTER_PYTHON_IMAGE=python{digest}",
        f"LOADMASTER_REDIS_IMAGE=redis{digest}",
        "SECRET_KEY=x",
    ]
    assert env.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("unknown", "local", "words"),
    [("redis:7", "", "cannot be pulled"), ("", "redis:7", "has no digest")],
)
def test_no_digest_is_invented(
    tmp_path: Path, registry: str, unknown: str, local: str, words: str
) -> None:
    env = tmp_path / "env"
    env.write_text("SECRET_KEY=x\n")
    done = run(DEPLOY / "pin-images", env, PATH=registry, UNKNOWN=unknown, LOCAL=local)
    assert done.returncode == 1
    assert f"redis:7 {words}" in done.stderr
    assert env.read_text() == "SECRET_KEY=x\n"


def test_compose_passes_on_every_setting_of_the_server_but_those_it_or_the_image_decides() -> None:
    decided = {
        "LOADMASTER_CACHE_URL", "LOADMASTER_REDIS_CA", "LOADMASTER_METRICS_DIR", "LOADMASTER_DEBUG",
        "LOADMASTER_HOME",
        "DJANGO_SUPERUSER_PASSWORD",
        "VALKEY_SOCKET", "STATIC_ROOT", "NUMBA_CACHE_DIR", "LOADMASTER_SIMULATIONS_DIR",
    }  # fmt: skip
    table = (
        (ROOT / "docs" / "settings.md").read_text().split("## Server")[1].split("## Programs")[0]
    )
    documented = {
        name
        for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    passed_on = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["web"][
        "environment"
    ]
    assert "LOADMASTER_ROUND_JOBS" in documented
    assert documented - set(passed_on) == decided


def test_compose_says_the_same_defaults_as_the_settings() -> None:
    passed_on = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["web"][
        "environment"
    ]
    said = {name: re.search(r":-([^}]*)\}", str(value)) for name, value in passed_on.items()}
    kept = {
        f"LOADMASTER_KEEP_{name.upper()}_DAYS": days for name, days in settings.KEEP_DAYS.items()
    }
    assert {name: float(found[1]) for name, found in said.items() if found and name in kept} == kept
    assert f":-{settings.ROUND_JOBS}}}" in passed_on["LOADMASTER_ROUND_JOBS"]


def test_images_hold_neither_state_nor_secrets() -> None:
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept[[line.startswith("#") for line in kept].index(False)] == "*"
    assert not [
        line
        for line in kept
        if line.startswith("!") and re.search(r"env|certificates|tests|\.git|loadmaster/\.", line)
    ]
    assert not re.search(r"^ENV.*SECRET", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.search(r"^USER loadmaster$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


@pytest.mark.slow
def test_a_wheel_holds_what_nodes_and_clients_need(tmp_path: Path) -> None:
    source = tmp_path / "source"
    listed = subprocess.check_output(
        [
            *("git", "ls-files", "-z"),
            *("foundation", "loadmaster", "policies", "pyproject.toml", "README.md"),
        ],
        cwd=ROOT,
    )
    for name in listed.decode().split("\0")[:-1]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    done = run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
        source,
    )
    assert done.returncode == 0, done.stderr
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    tracked = listed.decode().split("\0")
    wanted = {
        name
        for name in tracked
        if name.startswith(("foundation/", "loadmaster/"))
        and name.endswith((".sh", ".json", ".py"))
    }
    assert wanted - names == set()
