"""Production's settings: addresses are read as meant, each finding of `check --deploy` has a
remedy, and all is documented.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from controlplane.environment import (
    amount,
    broker_address,
    cache_address,
    cache_location,
    database,
    switch,
    tls_options,
    whole,
)

ROOT = Path(__file__).parents[2]


def production(folder: Path) -> dict[str, str]:
    """An environment as docker-compose.yml makes it, without the servers."""
    static = folder / "static"
    static.mkdir(exist_ok=True)
    (static / "staticfiles.json").write_text('{"paths": {}, "version": "1.1", "hash": ""}')
    return {
        "PATH": os.environ["PATH"],
        "LOADMASTER_HOME": str(folder / "home"),
        "STATIC_ROOT": str(static),
        "DATABASE_URL": "postgresql://loadmaster@postgres:5432/loadmaster",
        "REDIS_URL": "redis://redis:6379/0",
        "SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz" * 2,
        "LOADMASTER_SECRETS_KEY": Fernet.generate_key().decode(),
        "ALLOWED_HOSTS": "loadmaster.example,web,localhost",
        "LOADMASTER_TLS": "true",
        "FORWARDED_ALLOW_IPS": "*",
    }


def check(environment: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """`manage.py check --deploy` in a process of its own, where warnings fail."""
    command = [
        sys.executable,
        "manage.py",
        "check",
        "--deploy",
        "--fail-level",
        "WARNING",
        *options,
    ]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def settings_under(environment: Mapping[str, str], *names: str) -> dict[str, Any]:
    """The named settings, as a process with this environment has them."""
    script = (
        "import json; from django.conf import settings as s; print(json.dumps({n: getattr(s, n)"
        f" for n in {names!r}}}))"
    )
    given = {**environment, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.check_output(
        [sys.executable, "-c", script], cwd=ROOT, env=given, text=True, timeout=60
    )
    answer: dict[str, Any] = json.loads(done)
    return answer


def test_a_number_of_web_processes_that_is_left_empty_is_the_default(tmp_path: Path) -> None:
    """As deploy/entrypoint takes it, which reads the same variable."""
    given = {"PATH": os.environ["PATH"], "LOADMASTER_HOME": str(tmp_path)}
    for value, meant in (("", 1), ("3", 3)):
        assert settings_under({**given, "WEB_CONCURRENCY": value}, "WEB_CONCURRENCY") == {
            "WEB_CONCURRENCY": meant
        }


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", "nan", "1e3", "1_000", "３", "9" * 30])
def test_a_number_that_cannot_be_meant_is_refused_by_its_variables_name(text: str) -> None:
    with pytest.raises(
        ImproperlyConfigured,
        match="WEB_CONCURRENCY: must be a whole number of at least 1, or empty for 2",
    ):
        whole({"WEB_CONCURRENCY": text}, "WEB_CONCURRENCY", 2, least=1)


@pytest.mark.parametrize(
    "text", ["abc", "0", "-0.5", "nan", "inf", "1e308", "1_000", "３", "36501", "."]
)
def test_an_amount_that_cannot_be_meant_is_refused_by_its_variables_name(text: str) -> None:
    with pytest.raises(
        ImproperlyConfigured, match="HOURS: must be a number above 0, at most 36500, or empty for 6"
    ):
        amount({"HOURS": text}, "HOURS", 6.0, positive=True)


@pytest.mark.parametrize("text", ["ture", "2", "tls"])
def test_a_switch_that_says_neither_yes_nor_no_is_refused_by_its_variables_name(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="TLS: must be true or false"):
        switch({"TLS": text}, "TLS")


def test_numbers_and_switches_are_read_as_written_and_empty_ones_are_the_default() -> None:
    given = {"THREE": " 3 ", "EMPTY": "", "BLANK": " ", "ZERO": "0", "HALF": "0.5"}
    assert [whole(given, name, 7) for name in ("THREE", "ZERO", "EMPTY", "BLANK", "MISSING")] == [
        3,
        0,
        7,
        7,
        7,
    ]
    assert [amount(given, name, 7.0) for name in ("HALF", "ZERO", "EMPTY", "MISSING")] == [
        0.5,
        0.0,
        7.0,
        7.0,
    ]
    words = ("True", "on", "1", "FALSE", "no", "0", "")
    assert [switch({"S": word}, "S") for word in words] == [True] * 3 + [False] * 4
    assert switch({}, "S", default=True)


def test_the_deployment_check_finds_nothing_in_productions_environment(tmp_path: Path) -> None:
    done = check(production(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_the_deployment_check_names_everything_that_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    environment = {
        **production(tmp_path), "DATABASE_URL": "", "REDIS_URL": "", "SECRET_KEY": "short",
        "LOADMASTER_SECRETS_KEY": "",
        "ALLOWED_HOSTS": "*", "LOADMASTER_TLS": "false", "FORWARDED_ALLOW_IPS": "proxy",
        "STATIC_ROOT": str(tmp_path / "none"),
        "LOADMASTER_DEBUG": "true",
    }  # fmt: skip
    done = check(environment)
    found = set(re.findall(r"\((loadmaster\.\w+|security\.\w+)\)", done.stderr))
    assert done.returncode == 1
    assert {f"loadmaster.W00{n}" for n in (1, 2, 4, 5, 6, 7)} <= found
    assert {
        "security.W004",
        "security.W008",
        "security.W009",
        "security.W012",
        "security.W016",
        "security.W018",
    } <= found
    ours = [line for line in done.stderr.splitlines() if "loadmaster.W" in line]
    assert done.stderr.count("HINT: ") >= len(ours) > 0


def test_a_cache_in_the_brokers_database_is_found(tmp_path: Path) -> None:
    done = check({**production(tmp_path), "LOADMASTER_CACHE_URL": "redis://redis:6379/0"})
    assert "loadmaster.W003" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LOADMASTER_SECRETS_KEY", "short", "loadmaster.E002"),
        ("REDIS_URL", "http://redis", "REDIS_URL: must begin with redis://"),
        ("WEB_CONCURRENCY", "many", "WEB_CONCURRENCY: must be a whole number"),
        ("LOADMASTER_TLS", "ture", "LOADMASTER_TLS: must be true or false"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_remedy(
    tmp_path: Path, name: str, value: str, words: str
) -> None:
    done = check({**production(tmp_path), name: value})
    assert done.returncode != 0
    assert words in done.stderr


def test_a_socket_whose_path_is_too_long_is_found(tmp_path: Path) -> None:
    done = check({**production(tmp_path), "REDIS_URL": "", "VALKEY_SOCKET": "/tmp/" + "x" * 110})
    assert "loadmaster.E003" in done.stderr


def test_a_home_that_was_open_to_others_is_closed_with_its_files(tmp_path: Path) -> None:
    home, key = tmp_path / "home", tmp_path / "home" / "secret_key"
    (home / "checkpoints").mkdir(parents=True)
    key.write_text("0123456789" * 6)
    for path, mode in ((home, 0o755), (key, 0o644), (home / "checkpoints", 0o755)):
        path.chmod(mode)
    (home / "elsewhere").symlink_to(tmp_path)
    given = {"PATH": os.environ["PATH"], "LOADMASTER_HOME": str(home)}
    assert settings_under(given, "SECRET_KEY") == {"SECRET_KEY": "0123456789" * 6}
    assert (home.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o700, 0o600)
    assert (home / "checkpoints").stat().st_mode & 0o777 == 0o755
    assert tmp_path.stat().st_mode & 0o100


def test_a_home_that_everybody_shares_is_left_and_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o1777)
    done = check(production(tmp_path))
    assert home.stat().st_mode & 0o7777 == 0o1777
    assert "loadmaster.W008" in done.stderr
    assert f"chmod go-rwx {home}" in done.stderr


def test_over_tls_cookies_are_bound_to_the_host(tmp_path: Path) -> None:
    names = ("SESSION_COOKIE_NAME", "CSRF_COOKIE_NAME")
    over_tls = settings_under(production(tmp_path), *names)
    assert tuple(over_tls.values()) == ("__Host-sessionid", "__Host-csrftoken")
    plain = settings_under({**production(tmp_path), "LOADMASTER_TLS": "false"}, *names)
    assert tuple(plain.values()) == ("sessionid", "csrftoken")


def test_several_processes_must_be_given_one_secret_key(tmp_path: Path) -> None:
    done = check({**production(tmp_path), "SECRET_KEY": ""})
    assert "SECRET_KEY must be set where DATABASE_URL is" in done.stderr


def test_broker_and_cache_have_databases_of_their_own() -> None:
    assert broker_address("redis://:pw@host:6379/2") == "redis://:pw@host:6379/2"
    assert cache_location("redis://:pw@host:6379/2") == "redis://:pw@host:6379/3"
    assert cache_location("redis://host") == "redis://host/1"


def test_a_server_on_a_socket_is_named_in_celerys_and_djangos_words() -> None:
    assert (
        broker_address("unix:///run/valkey.sock?db=3")
        == "redis+socket:///run/valkey.sock?virtual_host=3"
    )
    assert (
        broker_address("redis+socket:///run/valkey.sock")
        == "redis+socket:///run/valkey.sock?virtual_host=0"
    )
    assert cache_location("unix:///run/valkey.sock") == "unix:///run/valkey.sock?db=1"
    assert (
        cache_address("redis+socket:///run/valkey.sock?virtual_host=4")
        == "unix:///run/valkey.sock?db=4"
    )


@pytest.mark.parametrize("url", ["redis://host/broker", "amqp://host", "host:6379"])
def test_an_address_that_is_no_redis_server_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL"):
        broker_address(url)


def test_a_server_with_tls_has_its_certificate_checked(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.crt"
    authorities.write_text("x")
    assert tls_options("redis://host", "") == {}
    assert tls_options("rediss://host", "")["ssl_cert_reqs"] == "required"
    assert tls_options("rediss://host", str(authorities))["ssl_ca_certs"] == str(authorities)
    with pytest.raises(ImproperlyConfigured, match="LOADMASTER_REDIS_CA"):
        tls_options("rediss://host", str(tmp_path / "none"))


def test_the_databases_address_carries_its_options(tmp_path: Path) -> None:
    options = (
        "sslmode=verify-full&sslrootcert=/ca.crt&conn_max_age=0&disable_server_side_cursors=false"
    )
    url = f"postgresql://u:p%40ss@db:6432/name?{options}"
    entry = settings_under({**production(tmp_path), "DATABASE_URL": url}, "DATABASES")["DATABASES"][
        "default"
    ]
    assert (entry["PASSWORD"], entry["PORT"]) == ("p@ss", 6432)
    assert (entry["CONN_MAX_AGE"], entry["DISABLE_SERVER_SIDE_CURSORS"]) == (0, False)
    assert entry["OPTIONS"] == {"sslmode": "verify-full", "sslrootcert": "/ca.crt"}
    assert entry["CONN_HEALTH_CHECKS"] is True


def test_connections_are_kept_unless_the_address_says_otherwise() -> None:
    assert database({"NAME": "x"}) == {"NAME": "x", "CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}


def test_who_calls_is_never_taken_from_a_header_by_the_throttles(tmp_path: Path) -> None:
    assert (
        settings_under(production(tmp_path), "REST_FRAMEWORK")["REST_FRAMEWORK"]["NUM_PROXIES"] == 0
    )


_READ = re.compile(
    r"""(?:env\.\w+\(|_(?:whole|amount|switch)\(|environ\.get\(|environ\.setdefault\(|envvar=)\s*"""
    r'"([A-Z][A-Z0-9_]+)"'
)
_SHELL = re.compile(r"\$\{([A-Z][A-Z0-9_]+)[:}-]")
_NOT_SETTINGS = {
    "BASE",
    "CUDA_VISIBLE_DEVICES",
    "DJANGO_SETTINGS_MODULE",
    "DJANGO_SUPERUSER_EMAIL",
    "DJANGO_SUPERUSER_USERNAME",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
}
_TOLD_TO_JOBS = {
    f"LOADMASTER_{name}"
    for name in (
        "CHECKPOINT_DIR",
        "DEVICES",
        "GANG",
        "GANG_TOKEN",
        "HOST_ADDRESSES",
        "RANK",
        "SEAT",
        "STEPS",
    )
}


def read_by_the_code() -> set[str]:
    """Every variable that settings, programs, agent, client, compose file and scripts read."""
    from loadmaster.agent.config import ENVIRONMENT

    packages = ("controlplane", "clusters", "jobs", "profiling", "policies", "loadmaster")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    names = {name for path in sources for name in _READ.findall(path.read_text())} | set(
        ENVIRONMENT.values()
    )
    for path in (ROOT / "docker-compose.yml", ROOT / "deploy" / "entrypoint", ROOT / "Dockerfile"):
        names |= set(_SHELL.findall(path.read_text()))
    names |= {f"LOADMASTER_KEEP_{name.upper()}_DAYS" for name in django_settings.KEEP_DAYS}
    # Slurm's own variables, which scripts and their steps have or set.
    of_slurm = {name for name in names if name.startswith(("SLURM_", "SACCT_"))}
    return names - _NOT_SETTINGS - _TOLD_TO_JOBS - of_slurm


def documented(*sections: str) -> set[str]:
    """The variables in the tables of docs/settings.md, or of the named sections of it."""
    text = (ROOT / "docs" / "settings.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    chosen = [part for part in parts if not sections or part.splitlines()[0] in sections]
    rows = [row for part in chosen for row in re.findall(r"^\| (`.+?) \|", part, re.MULTILINE)]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_variable_that_is_read_is_documented() -> None:
    assert read_by_the_code() - documented() == set()


def test_every_variable_that_is_documented_is_read() -> None:
    assert documented() - documented("Tests") - read_by_the_code() == set()


MUTE = """
import django
django.setup()
from kombu.exceptions import OperationalError
from controlplane.loop.tasks import run_cluster_round
try:
    run_cluster_round.delay(1)
except OperationalError:
    print("given up")
"""


def test_a_hint_to_a_broker_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        broker = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        given = {
            **production(tmp_path),
            "REDIS_URL": broker,
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }
        done = subprocess.run(
            [sys.executable, "-c", MUTE],
            cwd=ROOT,
            env=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert done.stdout == "given up\n"
