"""Backups: a tar file of mode 0600 with `manifest.json`, `database` and optional `keys.json`.

Teams' secrets in it are encrypted and lost without the server's keys: keep those elsewhere.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from controlplane.operations.backup.engines import CHECK, BackupError, engine

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a backup: `sha256` and `size` (bytes) are the dump's, `vendor` its database."""

    version: str
    vendor: str
    created_at: str
    sha256: str
    size: int
    migrations: tuple[str, ...]
    has_keys: bool
    format: int = FORMAT


def write_backup(path: Path, *, with_keys: bool = False, force: bool = False) -> Manifest:
    """Write a backup to a new file of mode 0600; `force` overwrites.

    Raises BackupError, also for a database without Loadmaster's tables: not the server's own.
    """
    if path.exists() and not force:
        raise BackupError(f"{path} exists; choose another name, or replace it with --force")
    try:
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=path.parent) as work:
            dump = Path(work) / "database"
            engine().dump(dump)
            manifest = _manifest(dump, with_keys)
            whole = Path(work) / "whole"
            _pack(whole, manifest, dump)
            whole.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # the new name is on the disk, too
        os.close(folder)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror or error}") from error
    return manifest


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Manifest, Path]]:
    """Yield manifest and dump, checked against its checksum.

    The dump has no name in a folder: a restore that is killed leaves no copy of the secrets in it.
    """
    try:
        with _unnamed_file(path.parent) as work, tarfile.open(path, "r:") as archive:
            manifest = _read_manifest(archive)
            dump = Path(f"/proc/{os.getpid()}/fd/{work.fileno()}")
            _unpack(archive, dump, manifest)
            yield manifest, dump
    except tarfile.TarError as error:
        raise BackupError(f"{path} cannot be read as a backup: {error}") from error


def _unnamed_file(folder: Path) -> IO[bytes]:
    """Open an unnamed file in the folder, or in the temporary one if that refuses.

    A container's temporary folder is memory.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def keys_of(path: Path) -> dict[str, str]:
    """Server's keys by setting name; BackupError if the backup has none."""
    with tarfile.open(path, "r:") as archive:
        member = _member(archive, "keys.json")
        if member is None:
            raise BackupError(f"{path} was made without --with-key: the keys are not in it")
        keys: dict[str, str] = json.load(member)
    return keys


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes] | None:
    """Content of a file in the archive; None if it has none of that name."""
    return archive.extractfile(name) if name in archive.getnames() else None


def check_fits(manifest: Manifest) -> None:
    """Raise BackupError for another database engine or an unknown schema."""
    if manifest.vendor != connection.vendor:
        raise BackupError(
            f"the backup is of {manifest.vendor}, this server's database is {connection.vendor};"
            f" restore it on a server whose DATABASE_URL names {manifest.vendor}"
        )
    known = {_name(key) for key in MigrationLoader(connection).disk_migrations}
    unknown = sorted(set(manifest.migrations) - known)
    if unknown:
        names = ", ".join(unknown[:3])
        if len(unknown) > 3:
            names += f" and {len(unknown) - 3} more"
        raise BackupError(
            f"the backup was made by version {manifest.version}, whose schema is newer than that of"
            f" {version('loadmaster')} (unknown here: {names}); install that version first"
        )


def _manifest(dump: Path, with_keys: bool) -> Manifest:
    """Manifest of a dump. BackupError if the database has no tables of Loadmaster."""
    migrations = sorted(_name(key) for key in MigrationRecorder(connection).applied_migrations())
    if not migrations:
        raise BackupError(f"the {connection.vendor} database has no tables of Loadmaster; {CHECK}")
    return Manifest(
        version=version("loadmaster"),
        vendor=connection.vendor,
        created_at=timezone.now().isoformat(),
        sha256=_digest(dump),
        size=dump.stat().st_size,
        migrations=tuple(migrations),
        has_keys=with_keys,
    )


def _name(key: tuple[str, str]) -> str:
    """Name of a migration from (application, name)."""
    return f"{key[0]}.{key[1]}"


def _pack(path: Path, manifest: Manifest, dump: Path) -> None:
    """Write a backup to a new file, down to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            _add(archive, "manifest.json", json.dumps(asdict(manifest), indent=1).encode())
            if manifest.has_keys:
                _add(archive, "keys.json", json.dumps(_keys()).encode())
            archive.add(dump, "database", filter=_without_owner)
        file.flush()
        os.fsync(file.fileno())


def _keys() -> dict[str, str]:
    """The server's keys by setting name."""
    return {
        "SECRET_KEY": settings.SECRET_KEY,
        "SECRET_KEY_FALLBACKS": ",".join(getattr(settings, "SECRET_KEY_FALLBACKS", [])),
        "LOADMASTER_SECRETS_KEY": os.environ.get("LOADMASTER_SECRETS_KEY", ""),
    }


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o600
    archive.addfile(member, io.BytesIO(content))


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the name of the user who makes the backup."""
    member.mode = 0o600
    member.uid = 0
    member.gid = 0
    member.uname = ""
    member.gname = ""
    return member


def _read_manifest(archive: tarfile.TarFile) -> Manifest:
    """Manifest of a backup; BackupError if it is none, or of another format."""
    try:
        member = archive.extractfile("manifest.json")
        fields: dict[str, Any] = json.load(member) if member else {}
        if fields.get("format") != FORMAT:
            raise BackupError(
                f"the backup is of format {fields.get('format')}, this version reads format"
                f" {FORMAT}"
            )
        return Manifest(**{**fields, "migrations": tuple(fields["migrations"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BackupError(f"this is no backup of Loadmaster: {error}") from error


def _unpack(archive: tarfile.TarFile, dump: Path, manifest: Manifest) -> None:
    """Write the dump of a backup to a file. BackupError if it is damaged."""
    member = _member(archive, "database")
    if member is None:
        raise BackupError("the backup contains no database; use another backup")
    with dump.open("wb") as file:
        shutil.copyfileobj(member, file)
    if dump.stat().st_size != manifest.size or _digest(dump) != manifest.sha256:
        raise BackupError(
            "the backup is damaged: the checksum of its database is wrong; use another backup"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
