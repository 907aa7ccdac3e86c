"""Translation of a submission for sbatch into the fields of a job."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from jobs.submission.sbatch.container import (
    put_container,
    put_files_of_container,
)
from jobs.submission.sbatch.environment import put_environment
from jobs.submission.sbatch.needs import (
    put_memory,
    put_resources,
    put_size,
)
from jobs.submission.sbatch.reader import ANY_SITE, Reader, Site, Submitted
from loadmaster.slurm.options import values
from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.reading import (
    COMMAND_LINE,
    MAX_SCRIPT,
    Given,
    ScriptError,
    late_lines,
    lines_of_other_systems,
    merged,
    read_script,
    read_words,
)
from loadmaster.slurm.options.sbatch_table import LEFT, REASONS, REFUSED, TREATMENTS

PARTS = ("script", "name", "options", "arguments", "folder", "host", "user", "environment")
"""Fields of `sbatch`."""

DEFAULT_NAME = "sbatch"
"""Name of a job whose script comes from standard input."""

NAME_OF_WRAP = "wrap"
_NO_INPUT = ("none", "/dev/null")


NO_FIELDS: Mapping[str, Any] = {}


def job_fields(
    given: object, now: datetime, own: Mapping[str, Any] = NO_FIELDS, site: Site = ANY_SITE
) -> Submitted:
    """Turn the field `sbatch` of a submission, an object with the fields of PARTS, into a job.

    `options` are the words of the command line, `arguments` the script's own, `name` is the
    script's file; `folder`, `host` and `user` are where it is submitted, `environment` has the
    variables there that `--export` asks for. Times of day are in the zone of `now`. `own`: fields
    that the job has itself. `site`: what the cluster decides. Raises ScriptError with every problem
    found.
    """
    # 1. Read the options of the command line.
    parts = _parts(given)
    options, rest = read_words(parts["options"], COMMAND_LINE)
    if rest:
        remedy = "the script's own words belong into arguments"
        raise ScriptError([f"{COMMAND_LINE}: {rest[0]!r} is no option; {remedy}"])
    _wrap(parts, options)

    # 2. Read those of the script, over which the command line's hold.
    in_force, warnings = merged(read_script(parts["script"]), options)
    warnings += late_lines(parts["script"])
    if "ignore-pbs" not in in_force:
        warnings += lines_of_other_systems(parts["script"])

    # 3. Give them their meaning.
    result = Submitted(warnings=warnings, test_only="test-only" in in_force)
    reader = Reader(parts, in_force, result, now, own, site)
    return _submitted(reader)


def _submitted(reader: Reader) -> Submitted:
    """Put all fields of the job. Raises ScriptError with all problems, each once."""
    size = put_size(reader)
    put_memory(reader, size)
    put_resources(reader, size)
    _put_times(reader)
    _put_dependencies(reader)
    in_container = put_container(reader)
    _put_script_and_files(reader, in_container=in_container)
    # Slurm never starts a script again after its own failure.
    reader.put("preemptible", "requeue" in reader.options, "requeue")
    put_environment(reader, size, in_container=in_container)
    _options_without_meaning(reader)
    if reader.problems:
        raise ScriptError(list(dict.fromkeys(reader.problems)))
    return reader.result


def _wrap(parts: dict[str, Any], options: Sequence[Given]) -> None:
    """Make a script of the command that the command line's `--wrap` gives, as sbatch does."""
    commands = [option.value for option in options if option.name == "wrap"]
    if not commands:
        return
    if parts["script"] or parts["arguments"]:
        raise ScriptError([f"{COMMAND_LINE}: --wrap: goes without a script; remove one of them"])
    parts["script"] = f"#!/bin/sh\n# This script was made of sbatch --wrap.\n\n{commands[-1]}\n"
    parts["name"] = parts["name"] or NAME_OF_WRAP


def _parts(given: object) -> dict[str, Any]:
    """Check the types of the fields of `sbatch`, and fill in those that are left out."""
    if not isinstance(given, dict):
        raise ScriptError(["must be an object such as {script: text, options: [], ...}"])
    for name in given:
        if name not in PARTS:
            raise ScriptError(
                [f"has no field {str(name)[:60]!r}; its fields are {', '.join(PARTS)}"]
            )
    parts: dict[str, Any] = {"script": "", "options": [], "arguments": [], "environment": {}}
    parts = {"name": "", "folder": "", "host": "", "user": "", **parts, **given}
    for name in ("script", "name", "folder", "host", "user"):
        if not isinstance(parts[name], str):
            raise ScriptError([f"{name} must be text"])
    for name in ("options", "arguments"):
        words = parts[name]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ScriptError([f'{name} must be a list of texts, such as ["-n", "4"]'])
    length = sum(len(word) for word in parts["options"])
    if length > MAX_SCRIPT:
        limit = f"options have {length} characters and may have {MAX_SCRIPT}"
        raise ScriptError([f"{limit}; give long values in environment or files"])
    if not isinstance(parts["environment"], dict):
        raise ScriptError(['environment must be an object such as {"NAME": "value"}'])
    return parts


def _options_without_meaning(reader: Reader) -> None:
    """Warn of options that are left out; refuse those that a script cannot do without."""
    for name in sorted(reader.options):
        if TREATMENTS[name] == REFUSED:
            reader.problems.append(f"{reader.options[name]}: is refused: {REASONS[name]}")
        elif TREATMENTS[name] == LEFT:
            reader.warn(name, "has no meaning here and is left out")
    if "wrap" in reader.options and reader.options["wrap"].place != COMMAND_LINE:
        reader.warn("wrap", "has no meaning in a script and is left out")
    if reader.read("input", str, "none") not in _NO_INPUT:
        remedy = "write exec < FILE into the script"
        reader.problems.append(f"{reader.options['input']}: a script has no input; {remedy}")


def _put_times(reader: Reader) -> None:
    """Put limits and moments, the indices of an array, and whether the job is held."""
    limit_s = reader.read("time", values.time_s, None)
    if limit_s is not None:
        reader.put("walltime", limit_s, "time")
    signal = reader.read("signal", values.end_signal, None)
    if signal is not None:
        reader.put("signal", str(signal), "signal")
    _put_moment(reader, "begin")
    _put_moment(reader, "deadline")
    indices = reader.read("array", str.strip, "")
    if indices:
        reader.put("array", values.array_text(indices), "array")
    if "hold" in reader.options:
        reader.put("hold", True, "hold")


def _put_moment(reader: Reader, name: str) -> None:
    """Put the moment of an option, `begin` only if it is still to come."""
    value = reader.read(name, lambda text: moment(text, reader.now), None)
    if value is not None and (value > reader.now or name != "begin"):
        reader.put(name, value.isoformat(), name)


def _put_dependencies(reader: Reader) -> None:
    references = reader.read("dependency", values.dependencies, list[str]())
    if references:
        reader.put("dependencies", references, "dependency")


def _put_script_and_files(reader: Reader, *, in_container: bool) -> None:
    """Put the script with its name and arguments, its folder and its output files."""
    parts = reader.parts
    file_name = PurePosixPath(parts["name"]).name or DEFAULT_NAME
    reader.put("name", reader.read("job-name", str, file_name), "job-name")
    reader.put("script", parts["script"])
    reader.put("command", list(parts["arguments"]))

    default = "slurm-%j.out"
    if "array" in reader.result.fields:
        default = "slurm-%A_%a.out"
    if not reader.folder:
        default = ""
    output = reader.read("output", str, default)
    error_output = reader.read("error", str, "")
    if in_container:
        put_files_of_container(reader, output, error_output)
        return
    reader.put("folder", reader.folder, "chdir")
    reader.put("output", output, "output")
    reader.put("error_output", error_output, "error")
