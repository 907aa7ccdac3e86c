"""Kinds of jobs: jobs of one kind run at one speed.

A kind is of one team, so that no team reads or changes what another's jobs have shown. Within it, a
kind is the user's name for it, else the sha256 of runtime, image and normalised command. Unknown
flags stay in: a kind split too finely costs a measurement, one too wide wrong decisions.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from jobs.models import Kind
from loadmaster import shell_words

_IGNORED = """
    seed random-seed rng-seed manual-seed data-seed random-state
    lr learning-rate base-lr initial-lr init-lr min-lr max-lr peak-lr end-lr warmup-lr lr-decay
    lr-scheduler lr-schedule
    epochs epoch num-epochs max-epochs n-epochs num-train-epochs train-epochs total-epochs
    start-epoch
    steps num-steps max-steps total-steps train-steps num-train-steps max-iters iters
    iterations num-iterations
    output out o save save-to log logs checkpoint checkpoints ckpt restore resume-from
    resume-from-checkpoint workdir tmp cache
    run-name run-id name experiment experiment-name tag tags job-name
"""
IGNORED = frozenset(_IGNORED.split())
"""Flags (without dashes, `_` written `-`) that are removed with their value."""

_SWITCHES = "resume verbose quiet overwrite overwrite-output-dir debug progress no-progress"
SWITCHES = frozenset(_SWITCHES.split())
"""Flags without a value that are removed."""

_PATH_ENDINGS = ("-dir", "-path", "-file", "-folder", "-root", "-directory", "-seed")
_PATH_NAMES = frozenset(e[1:] for e in _PATH_ENDINGS)
_DESCRIBES_MODEL = re.compile(r"config|model|arch|net")
_FLAG = re.compile(r"^--?[A-Za-z]")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][\w.-]*=")
_PATH = re.compile(r"^(/|~|\.{1,2}/|[A-Za-z][A-Za-z0-9+.-]*://)")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})
_PROGRAMS = (".py", ".sh", ".pl", ".rb", ".jl", ".R", ".js", ".jar", ".exe")


def digest(
    name: str = "", *, runtime: str = "", image: str = "", command: Sequence[str] = ()
) -> str:
    """Return the 64 hexadecimal digits that identify the kind."""
    named = name.strip()
    parts = ["named", named] if named else ["hashed", runtime, image, normalised_command(command)]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_ignored(name: str) -> bool:
    """Return True if the flag does not affect the speed of a step."""
    plain = _plain(name)
    path = plain.endswith(_PATH_ENDINGS) or plain in _PATH_NAMES
    return plain in IGNORED or (path and not _DESCRIBES_MODEL.search(plain))


def normalised_command(command: Sequence[str]) -> list[str]:
    """Return the command's words that determine a job's speed.

    Removes ignored flags with their values and switches; replaces paths by "<path>", except that
    programs, scripts and model configurations keep their last part. Splits the text after `sh -c`.
    """
    words = [str(w) for w in command]
    program = PurePosixPath(words[0]).name if words else ""
    if len(words) < 3 or program not in _SHELLS or not re.fullmatch(r"-.*c", words[1]):
        return list(_kept(words))
    try:
        return [program, "-c", *normalised_command(shell_words.split(words[2])), *words[3:]]
    except ValueError:  # no shell would take it either; it then stands for itself
        return words


def _kept(words: Sequence[str]) -> Iterable[str]:
    position = 0
    while position < len(words):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        position += 1
        name, has_value, value = word.partition("=")
        if _FLAG.match(word) and not has_value:
            if _plain(word) in SWITCHES:
                continue
            takes_value = following is not None and not _FLAG.match(following)
            if is_ignored(word):
                position += takes_value
                continue
            yield word
            if takes_value and following is not None and _DESCRIBES_MODEL.search(_plain(word)):
                yield _last_part(following)
                position += 1
        elif has_value and (_FLAG.match(word) or _ASSIGNMENT.match(word)):
            if not is_ignored(name):
                kept = _last_part if _DESCRIBES_MODEL.search(_plain(name)) else _without_path
                yield f"{name}={kept(value)}"
        else:
            program = position == 1 or word.endswith(_PROGRAMS)
            yield _last_part(word) if program else _without_path(word)


def _plain(name: str) -> str:
    return name.lstrip("-").rsplit(".", 1)[-1].lower().replace("_", "-")


def _without_path(value: str) -> str:
    return "<path>" if _PATH.match(value) else value


def _last_part(value: str) -> str:
    return (PurePosixPath(value).name or "<path>") if _PATH.match(value) else value


KindKey = tuple[int, str]
"""(primary key of the team, digest)."""


def kinds_for(names: Mapping[KindKey, str]) -> dict[KindKey, Kind]:
    """Return the teams' kinds, created if new; `names` are the users' own, or ""."""
    teams, digests = {team for team, _ in names}, {digest for _, digest in names}
    rows = Kind.objects.filter(team__in=teams, digest__in=digests)
    found = {(k.team_id, k.digest): k for k in rows if k.team_id is not None}
    for team, key in sorted(names.keys() - found.keys()):
        new = {"name": names[team, key].strip()[:100]}
        found[team, key], _ = Kind.objects.get_or_create(team_id=team, digest=key, defaults=new)
    return {key: found[key] for key in names}
