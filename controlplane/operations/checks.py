"""System checks: `check` finds errors, `check --deploy` also mistakes for production."""

import ipaddress
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Warn
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from jobs.secrets import given_keys
from loadmaster.files import open_to_others

LONGEST_SOCKET_PATH = 107
"""Bytes of a path that Linux takes for a Unix socket."""


@register(Tags.files)
def source_tree(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Require the pages' templates and static files, which are not in a wheel."""
    base = Path(settings.BASE_DIR)
    missing = [name for name in ("templates", "static") if not (base / name).is_dir()]
    if not missing:
        return []
    words = f"{base} has no folder {' and no folder '.join(missing)}"
    hint = (
        "Run the server from its source tree (pip install -e '.[server]') or from the image; a"
        " wheel is for agents and clients."
    )
    return [Error(words, hint=hint, id="loadmaster.E001")]


@register(Tags.security)
def secrets_keys(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check every key of LOADMASTER_SECRETS_KEY."""
    try:
        given_keys()
    except ImproperlyConfigured as error:
        hint = "deploy/make-env writes one; several are separated by commas, the newest first."
        return [Error(str(error), hint=hint, id="loadmaster.E002")]
    return []


@register(Tags.files)
def small_blocks(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find a file system whose blocks are smaller than a page of memory, beside SQLite.

    SQLite maps the index of its log into memory and reserves one block of each page. If the disk is
    full and a page has several blocks, Linux ends the process by SIGBUS when it writes the others.
    """
    home = Path(settings.LOADMASTER_HOME)
    if connection.vendor != "sqlite" or not home.is_dir():
        return []
    block_bytes = os.statvfs(home).f_frsize
    if block_bytes >= mmap.PAGESIZE:
        return []
    words = f"The file system of {home} has blocks of {block_bytes} bytes"
    hint = (
        "A full disk may end the server's processes there. Name a LOADMASTER_HOME on a file system"
        f" with blocks of {mmap.PAGESIZE} bytes (mkfs.ext4 -b {mmap.PAGESIZE})."
    )
    return [Warn(words, hint=hint, id="loadmaster.W009")]


@register(Tags.caches)
def socket_path(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the length of a Unix socket's path."""
    size = len(os.fsencode(settings.VALKEY_SOCKET))
    if settings.REDIS_URL or size <= LONGEST_SOCKET_PATH:
        return []
    words = f"VALKEY_SOCKET has {size} bytes; a socket's path may have {LONGEST_SOCKET_PATH}"
    hint = "Name a shorter path, or leave VALKEY_SOCKET unset."
    return [Error(words, hint=hint, id="loadmaster.E003")]


@register(Tags.security, deploy=True)
def servers(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Require PostgreSQL and Redis in production, and a database of its own for the cache."""
    warnings: list[CheckMessage] = []
    if connection.vendor == "sqlite":
        hint = (
            "Set DATABASE_URL, postgres://user:password@host/name; SQLite serves the programs of"
            " one machine only."
        )
        warnings.append(Warn("The database is SQLite", hint=hint, id="loadmaster.W001"))
    if not settings.REDIS_URL:
        hint = (
            "Set REDIS_URL, redis://host:6379/0; the embedded Valkey serves the programs of one"
            " machine only."
        )
        warnings.append(Warn("The broker is the embedded Valkey", hint=hint, id="loadmaster.W002"))
    elif settings.CACHES["default"]["LOCATION"] == settings.CELERY_BROKER_URL:
        hint = (
            "Unset LOADMASTER_CACHE_URL, or name another database in it: clearing the cache would"
            " clear the broker's queue."
        )
        warnings.append(
            Warn("Broker and cache share one database", hint=hint, id="loadmaster.W003")
        )
    return warnings


@register(Tags.security, deploy=True)
def access(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find settings that let in strangers."""
    warnings: list[CheckMessage] = []
    if "*" in settings.ALLOWED_HOSTS:
        hint = "Name the hosts that people and agents use, separated by commas."
        warnings.append(
            Warn("ALLOWED_HOSTS lets any host name pass", hint=hint, id="loadmaster.W004")
        )
    if not os.environ.get("LOADMASTER_SECRETS_KEY"):
        hint = (
            "Set LOADMASTER_SECRETS_KEY (deploy/make-env writes one), then run manage.py"
            " rotate_secrets."
        )
        words = (
            "The teams' secrets are encrypted with a key made from SECRET_KEY, and are lost with it"
        )
        warnings.append(Warn(words, hint=hint, id="loadmaster.W005"))
    for proxy in os.environ.get("FORWARDED_ALLOW_IPS", "").split(","):
        entry = proxy.strip()
        if entry and not _is_network(entry):
            hint = "Name the proxies' addresses or networks, as in 10.0.0.5,172.18.0.0/16."
            words = f"FORWARDED_ALLOW_IPS: {entry!r} is no address"
            warnings.append(Warn(words, hint=hint, id="loadmaster.W006"))
            break
    exposed = next(open_to_others(settings.LOADMASTER_HOME), None)
    if exposed is not None:
        hint = f"Run chmod go-rwx {exposed} as its owner, or name another LOADMASTER_HOME."
        words = f"Other users of this machine have rights to {exposed}"
        warnings.append(Warn(words, hint=hint, id="loadmaster.W008"))
    return warnings


@register(Tags.staticfiles, deploy=True)
def static_files(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Require collected static files, whose hashed names browsers may keep."""
    if (Path(settings.STATIC_ROOT) / "staticfiles.json").exists():
        return []
    words = f"{settings.STATIC_ROOT} holds no collected static files"
    hint = "Run manage.py collectstatic --noinput (the image has done it)."
    return [Warn(words, hint=hint, id="loadmaster.W007")]


def _is_network(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return entry == "*"
    return True
