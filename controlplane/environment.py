"""Settings from the environment: numbers, switches, addresses, databases. Nothing is written."""

import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.core.exceptions import ImproperlyConfigured

CONN_MAX_AGE_S = 60
LARGEST = 36_500
"""Largest amount: a hundred years in days; 0 stands for ever."""

KEEP_DAYS = {
    "snapshots": 14.0,
    "rounds": 400.0,
    "events": 30.0,
    "output": 180.0,
    "samples": 180.0,
    "simulations": 90.0,
    "keys": 30.0,
    "logins": 90.0,
    "audit": 400.0,
}
"""Days that old bulk is kept, 0 for ever; see controlplane/operations/retention.py."""

SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    # A thread sorts what is more than the cache holds, a million entries in two thirds the time.
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA threads=1;",
}
"""Options of SQLite with several writers."""

_ON, _OFF = ("true", "yes", "on", "1", "y", "ok", "t"), ("false", "no", "off", "0", "n", "f")
_FLAGS = ("ATOMIC_REQUESTS", "AUTOCOMMIT", "CONN_HEALTH_CHECKS", "DISABLE_SERVER_SIDE_CURSORS")
_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
}


def whole(given: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    """Parse a whole number >= `least`; empty: default. Raises ImproperlyConfigured."""
    if not (text := given.get(name, "").strip()):
        return default
    number = int(text) if re.fullmatch("[0-9]{1,18}", text) else least - 1
    if number < least:
        raise ImproperlyConfigured(
            f"{name}: must be a whole number of at least {least}, or empty for {default}, not"
            f" {text!r}"
        )
    return number


def amount(given: Mapping[str, str], name: str, default: float, *, positive: bool = False) -> float:
    """Parse a number in (0 or `positive`, LARGEST]; empty: default. Raises ImproperlyConfigured."""
    if not (text := given.get(name, "").strip()):
        return default
    number = float(text) if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text) else -1.0
    if number > LARGEST or number < 0 or (positive and number == 0):
        least = "above 0" if positive else "of at least 0"
        raise ImproperlyConfigured(
            f"{name}: must be a number {least}, at most {LARGEST}, or empty for {default:g}, not"
            f" {text!r}"
        )
    return number


def switch(given: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Parse yes or no; empty: default. Strict: a mistyped `true` must not disable TLS."""
    text = given.get(name, "")
    said = text.strip().lower()
    if said and said not in _ON + _OFF:
        raise ImproperlyConfigured(f"{name}: must be true or false, not {text!r}")
    return said in _ON if said else default


def database(parsed: dict[str, Any]) -> dict[str, Any]:
    """Complete Django's entry for a parsed DATABASE_URL with kept and checked connections."""
    entry = {"CONN_MAX_AGE": CONN_MAX_AGE_S, "CONN_HEALTH_CHECKS": True, **parsed}
    for name in _FLAGS:
        if isinstance(entry.get(name), str):
            entry[name] = str(entry[name]).lower() in ("1", "true", "yes", "on")
    return entry


def sqlite(home: Path) -> dict[str, Any]:
    """Django's entry for the embedded database, a file in LOADMASTER_HOME."""
    return {
        "ENGINE": "controlplane.web.storage.sqlite",
        "NAME": home / "db.sqlite3",
        # A connection costs a look at the whole schema, so it is kept for a while.
        "CONN_MAX_AGE": CONN_MAX_AGE_S,
        "OPTIONS": SQLITE_OPTIONS,
        # Tests know Django's backend alone as one whose databases may be in memory.
        "TEST": {"NAME": ":memory:"},
    }


def socket_path(home: Path) -> Path:
    """Embedded Valkey's socket; long homes use a short link (limit: 107 bytes)."""
    direct = home / "valkey.sock"
    if len(os.fsencode(direct)) < 100:
        return direct
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"loadmaster-{os.getuid()}-{name}" / "valkey.sock"


def cache_location(url: str) -> str:
    """Default cache location: the broker's next database, as clearing a cache empties it."""
    return _address(url, "unix", "db", shift=1)


def cache_address(url: str) -> str:
    return _address(url, "unix", "db")


def broker_address(url: str) -> str:
    return _address(url, "redis+socket", "virtual_host")


def tls_options(url: str, authorities: str) -> dict[str, Any]:
    """TLS options for `rediss://`: certificates are checked by the given or the system's list."""
    if not url or _SCHEMES.get(urlsplit(url).scheme) != "rediss":
        return {}
    if authorities and not Path(authorities).is_file():
        raise ImproperlyConfigured(
            f"LOADMASTER_REDIS_CA: there is no file {authorities}; name the file with the"
            " certificates of the authorities"
        )
    # Without a file OpenSSL's own list would not be loaded by the client, and every certificate be
    # refused.
    trusted = (
        authorities
        or ssl.get_default_verify_paths().cafile
        or ssl.get_default_verify_paths().openssl_cafile
    )
    return {"ssl_cert_reqs": "required", "ssl_ca_certs": trusted, "ssl_check_hostname": True}


def _address(url: str, socket_scheme: str, number_name: str, shift: int = 0) -> str:
    """Address with its database number `shift` further."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ImproperlyConfigured(
            "REDIS_URL: must begin with redis://, rediss:// or unix://, not"
            f" {parts.scheme or 'nothing'!r}"
        )
    socket = _SCHEMES[parts.scheme] == "unix"
    query = dict(parse_qsl(parts.query))
    number = (
        query.get("virtual_host", query.get("db", "0")) if socket else parts.path.strip("/") or "0"
    )
    if not number.isdecimal():
        raise ImproperlyConfigured(
            f"REDIS_URL: the database must be a number, as in redis://host:6379/0, not {number!r}"
        )
    shifted = int(number) + shift
    if socket:
        return f"{socket_scheme}://{parts.path}?{urlencode({number_name: shifted})}"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, f"/{shifted}", parts.query, ""))
