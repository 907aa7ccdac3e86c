"""Values of pyxis' options: images and mounts as enroot writes them, in the form that jobs have."""

import posixpath
import re

from loadmaster.slurm.options.values import ValueFormatError

LONGEST = 4000
"""Characters of an image or a list of mounts."""

_SCHEMES = ("docker://", "dockerd://", "podman://")
_PATHS = ("/", "./", "../", "~", "file:")
"""Beginnings of paths."""

_SQUASH_FILES = (".sqsh", ".squashfs", ".sqfs", ".squash")
"""Ends of names of squash files."""

_USER = re.compile(r"[^@/#]+@(?!sha256:)")
"""User before a registry."""

_IN_MEMORY = "tmpfs"
"""Source of a mount that is in memory."""

_REGISTRY = re.compile(r"[A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)+")
"""Name of a host alone: what is left of nvcr.io#nvidia/... where # begins a comment."""

_READ_ONLY = "ro"
_FLAGS = frozenset({
    _READ_ONLY, "rw", "bind", "rbind", "private", "rprivate", "shared", "rshared", "slave",
    "rslave", "nodev", "noexec", "nosuid", "nofail", "x-create=auto", "x-create=dir",
    "x-create=file",
})  # fmt: skip  # a long list of names
"""Flags of a mount. Only `ro` changes something here."""


def image_name(text: str) -> str:
    """Return an image by a registry's name: nvcr.io/nvidia/pytorch:24.01 of nvcr.io#nvidia/....

    A user before @ is left out, for the node has the credentials. Without a tag it is the latest.
    Raises ValueFormatError for a squash file.
    """
    name = text.strip()
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    if name.startswith(_PATHS) or name.lower().endswith(_SQUASH_FILES):
        remedy = "push it to a registry, and name it as there"
        raise ValueFormatError(f"{text[:80]!r} is a squash file or path, not run here; {remedy}")
    user = _USER.match(name)
    if user is not None:
        name = name[user.end() :]
    name = name.replace("#", "/", 1)
    last_part = name.rpartition("/")[2]
    if not last_part or len(name) > LONGEST:
        form = "write one such as nvcr.io#nvidia/pytorch:24.01-py3"
        raise ValueFormatError(f"{text[:80]!r} is no image; {form}")
    if _REGISTRY.fullmatch(name):
        example = "nvcr.io\\#nvidia/pytorch:24.01-py3"
        remedy = f"write all of {example}, in #SBATCH lines with the backslash"
        raise ValueFormatError(f"{text[:80]!r} is a registry without an image; {remedy}")
    if ":" not in last_part and "@" not in last_part:
        name += ":latest"
    return name


def mount_list(text: str, folder: str) -> list[str]:
    """Return the mounts of SOURCE[:TARGET[:FLAGS]], several by commas, as a job has them.

    A source alone has its own path in the container. A relative one begins in `folder`.
    """
    if len(text) > LONGEST:
        limit = f"has {len(text)} characters and may have {LONGEST}"
        raise ValueFormatError(f"{limit}; mount a folder above them")
    parts = [part.strip() for part in text.split(",")]
    mounts = [_mount(part, folder) for part in parts if part]
    return list(dict.fromkeys(mounts))


def _mount(text: str, folder: str) -> str:
    """Return one mount as a job has it: SOURCE:TARGET or SOURCE:TARGET:ro."""
    # 1. Its fields. A relative source begins in the folder.
    fields = text.split(":")
    source = fields[0]
    is_relative = source != "" and not source.startswith(("/", "~")) and source != _IN_MEMORY
    if folder and is_relative:
        source = posixpath.join(folder, source)
    target = source
    if len(fields) > 1:
        target = fields[1]
    flags: list[str] = []
    if len(fields) > 2:
        flags = fields[2].split("+")

    # 2. Only whole paths and known flags are mounts here.
    has_paths = source.startswith("/") and target.startswith("/")
    if len(fields) > 3 or not has_paths or not _FLAGS.issuperset(flags):
        form = "write /source, /source:/target or /source:/target:ro"
        raise ValueFormatError(f"{text[:80]!r} is no mount of a folder of the node; {form}")
    mount = f"{posixpath.normpath(source)}:{posixpath.normpath(target)}"
    if _READ_ONLY in flags:
        mount += f":{_READ_ONLY}"
    return mount
