"""Documents of studies, as `Study.of` checks them, from YAML files or command lines."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from controlplane.simulation.cluster.accasim import cluster_of_accasim, is_accasim
from controlplane.simulation.study.document import MOST_SEEDS, StudyError
from controlplane.simulation.workloads import FILES
from loadmaster.strict_yaml import DocumentError, StrictLoader, parse_yaml, read_fields

LARGEST = 50_000_000
"""Bytes of a file."""

TRACES: Mapping[str, str] = {".swf": "swf", ".csv": "csv"}
"""Formats of traces by file extension; others are named by type: gavel:path=FILE."""

_DOCUMENTS = (".yaml", ".yml", ".json")
"""Extensions of files with a document."""


class _Loader(StrictLoader):
    """The strict loader that also reads 1e9 as a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_study(path: Path) -> dict[str, Any]:
    """Read the document of a study's file; paths in it are relative to its folder."""
    # 1. The cluster: another file, one of the database, or as it is.
    document = _document(path)
    cluster = document.get("cluster")
    if isinstance(cluster, str) and not is_live(cluster):
        document["cluster"] = cluster_of(cluster, path.parent)

    # 2. The workload: one of the database, in words, or its options.
    workload = document.get("workload")
    if isinstance(workload, str) and not is_live(workload):
        document["workload"] = workload_of(workload, path.parent)
    elif isinstance(workload, Mapping):
        document["workload"] = _with_whole_paths(workload, path.parent)

    # 3. The policies: in words, or as they are.
    policies = document.get("policies")
    if isinstance(policies, list):
        document["policies"] = [_policy_entry(item, path.parent) for item in policies]
    return document


def is_live(cluster: str) -> bool:
    """Return True for a cluster of the database: `live`, or `live:NAME`."""
    return cluster == "live" or cluster.startswith("live:")


def cluster_of(words: str, folder: Path) -> dict[str, Any]:
    """Read the cluster in a file, or a system configuration of AccaSim."""
    document = _document(folder / words)
    try:
        return cluster_of_accasim(document) if is_accasim(document) else document
    except ValueError as error:
        raise StudyError(f"cluster.{error}") from None


def workload_of(words: str, folder: Path) -> dict[str, Any]:
    """Parse a workload: a YAML file, a trace's file, or TYPE[:name=value,...]."""
    path = folder / words
    if path.suffix in _DOCUMENTS and "=" not in words:
        return _with_whole_paths(_document(path), path.parent)
    if path.suffix in TRACES and "=" not in words:
        return {"type": TRACES[path.suffix], "path": str(path.resolve())}
    kind, _, values = words.partition(":")
    options = {"type": kind, **values_of(values, f"workload {kind}")}
    return _with_whole_paths(options, folder)


def policy_of(words: str) -> dict[str, Any]:
    """Parse a policy: NAME[:parameter=value,...], or FILE.py in place of the name."""
    name, _, values = words.partition(":")
    source = {"file": str(Path(name).resolve())} if name.endswith(".py") else {"name": name}
    return {**source, "parameters": values_of(values, f"policy {name}")}


def seeds_of(words: str) -> list[int]:
    """Parse seeds: 1,2,3 or 1-5."""
    seeds: list[int] = []
    for part in words.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        if not match:
            raise StudyError(f"seeds: write 1,2,3 or 1-5, not {words!r}")
        first = int(match[1])
        last = int(match[2] or match[1])
        if not first <= last < first + MOST_SEEDS:
            raise StudyError(f"seeds: {part} must go upwards, over at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    return seeds


def switches_of(words: Iterable[str]) -> dict[str, Any]:
    """Parse switches, name=value each."""
    switches = {}
    for word in words:
        switches.update(values_of(word, "switch"))
    return switches


def values_of(words: str, owner: str) -> dict[str, Any]:
    """Parse name=value,...; values are YAML, so that commas may stand in brackets.

    `owner`: for messages, what the values are of.
    """
    values: dict[str, Any] = {}
    for word in _parts(words):
        name, sign, value = word.partition("=")
        name = name.strip()
        if not sign or not name.isidentifier():
            raise StudyError(f"{owner}: write name=value, not {word!r}")
        if name in values:
            raise StudyError(f"{owner}: {name} is given twice")
        try:
            values[name] = parse_yaml(value, _Loader)
        except DocumentError as error:
            raise StudyError(f"{owner}: {name}: {error}") from None
    return values


def _parts(words: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts = [""]
    depth = 0
    for character in words:
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _with_whole_paths(workload: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a workload's options with absolute paths; they were relative to `folder`."""
    options = dict(workload)
    for name in FILES:
        path = options.get(name)
        if isinstance(path, str) and path:
            options[name] = str((folder / path).resolve())
    return options


def _policy_entry(item: object, folder: Path) -> object:
    """Return a policy of a document, which may be a text, as its fields, with absolute paths."""
    if isinstance(item, str) and ":" in item:
        item = policy_of(item)
    elif isinstance(item, str) and item.endswith(".py"):
        item = {"file": item}
    elif isinstance(item, str):
        item = {"name": item}
    if isinstance(item, Mapping) and isinstance(item.get("file"), str):
        return {**item, "file": str((folder / item["file"]).resolve())}
    return item


def _document(path: Path) -> dict[str, Any]:
    """Read the fields of a file. Raises StudyError."""
    try:
        return read_fields(path, LARGEST, example="name: ...", loader=_Loader)
    except DocumentError as error:
        raise StudyError(str(error)) from None
