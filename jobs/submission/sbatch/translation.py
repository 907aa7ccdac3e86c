"""Translation of a submission for sbatch into the fields of a job."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from jobs.submission.sbatch.container import set_container, set_files_of_container
from jobs.submission.sbatch.environment import set_environment
from jobs.submission.sbatch.needs import set_memory, set_resources, set_size
from jobs.submission.sbatch.script_job import ANY_SITE, ScriptJob, Site, Submitted
from loadmaster.slurm.options import values
from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.reading import (
    COMMAND_LINE,
    MAX_SCRIPT,
    GivenOption,
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
"""Name of a job whose script is made of `--wrap`."""

_NO_INPUT = ("none", "/dev/null")
"""Values of `--input` for no input."""

NO_FIELDS: Mapping[str, Any] = {}


def job_fields(
    value: object, now: datetime, own: Mapping[str, Any] = NO_FIELDS, site: Site = ANY_SITE
) -> Submitted:
    """Turn the field `sbatch` of a submission, an object with the fields of PARTS, into a job.

    `options` are the words of the command line, `arguments` the script's own, `name` is the
    script's file; `folder`, `host` and `user` are where it is submitted, `environment` has the
    variables there that `--export` asks for. Times of day are in the zone of `now`. `own`: fields
    that the job has itself. `site`: what the cluster decides. Raises ScriptError with every problem
    found.
    """
    # 1. Read the options of the command line; `--wrap` becomes a script.
    parts = _parts(value)
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
    job = ScriptJob(parts, in_force, result, now, own, site)
    return _submitted(job)


def _submitted(job: ScriptJob) -> Submitted:
    """Set all fields of the job. Raises ScriptError with all problems, each once."""
    size = set_size(job)
    set_memory(job, size)
    set_resources(job, size)
    _set_times(job)
    _set_dependencies(job)
    in_container = set_container(job)
    _set_script_and_files(job, in_container=in_container)
    # Slurm never starts a script again after its own failure.
    job.set_field("preemptible", "requeue" in job.options, "requeue")
    set_environment(job, size, in_container=in_container)
    _options_without_meaning(job)
    if job.problems:
        raise ScriptError(list(dict.fromkeys(job.problems)))
    return job.submitted


def _wrap(parts: dict[str, Any], options: Sequence[GivenOption]) -> None:
    """Make a script of the command that the command line's `--wrap` gives, as sbatch does."""
    commands = [option.value for option in options if option.name == "wrap"]
    if not commands:
        return
    if parts["script"] or parts["arguments"]:
        raise ScriptError([f"{COMMAND_LINE}: --wrap: goes without a script; remove one of them"])
    parts["script"] = f"#!/bin/sh\n# This script was made of sbatch --wrap.\n\n{commands[-1]}\n"
    parts["name"] = parts["name"] or NAME_OF_WRAP


def _parts(value: object) -> dict[str, Any]:
    """Check the types of the fields of `sbatch`, and fill in those that are left out."""
    # 1. The fields.
    if not isinstance(value, dict):
        raise ScriptError(["must be an object such as {script: text, options: [], ...}"])
    for name in value:
        if name not in PARTS:
            fields = ", ".join(PARTS)
            raise ScriptError([f"has no field {str(name)[:60]!r}; its fields are {fields}"])
    parts: dict[str, Any] = {
        "script": "",
        "name": "",
        "options": [],
        "arguments": [],
        "folder": "",
        "host": "",
        "user": "",
        "environment": {},
        **value,
    }

    # 2. Their types and lengths.
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


def _options_without_meaning(job: ScriptJob) -> None:
    """Warn of options that are left out; refuse those that a script cannot do without."""
    for name in sorted(job.options):
        if TREATMENTS[name] == REFUSED:
            job.refuse(name, f"is refused: {REASONS[name]}")
        elif TREATMENTS[name] == LEFT:
            job.warn(name, "has no meaning here and is left out")
    if "wrap" in job.options and job.options["wrap"].place != COMMAND_LINE:
        job.warn("wrap", "has no meaning in a script and is left out")
    if job.option_value("input", str, "none") not in _NO_INPUT:
        remedy = "write exec < FILE into the script"
        job.refuse("input", f"a script has no input; {remedy}")


def _set_times(job: ScriptJob) -> None:
    """Set limits and moments, the indices of an array, and whether the job is held."""
    limit_s = job.option_value("time", values.time_s, None)
    if limit_s is not None:
        job.set_field("walltime", limit_s, "time")
    signal = job.option_value("signal", values.end_signal, None)
    if signal is not None:
        job.set_field("signal", str(signal), "signal")
    _set_moment(job, "begin")
    _set_moment(job, "deadline")
    indices = job.option_value("array", str.strip, "")
    if indices:
        job.set_field("array", values.array_text(indices), "array")
    if "hold" in job.options:
        job.set_field("hold", True, "hold")


def _set_moment(job: ScriptJob, name: str) -> None:
    """Set the moment of an option, `begin` only if it is still to come."""
    value = job.option_value(name, lambda text: moment(text, job.now), None)
    if value is not None and (value > job.now or name != "begin"):
        job.set_field(name, value.isoformat(), name)


def _set_dependencies(job: ScriptJob) -> None:
    """Set the jobs that the job waits for."""
    references = job.option_value("dependency", values.dependencies, list[str]())
    if references:
        job.set_field("dependencies", references, "dependency")


def _set_script_and_files(job: ScriptJob, *, in_container: bool) -> None:
    """Set the script with its name and arguments, its folder and its output files."""
    parts = job.parts
    file_name = PurePosixPath(parts["name"]).name or DEFAULT_NAME
    job.set_field("name", job.option_value("job-name", str, file_name), "job-name")
    job.set_field("script", parts["script"])
    job.set_field("command", list(parts["arguments"]))

    default = "slurm-%j.out"
    if "array" in job.submitted.fields:
        default = "slurm-%A_%a.out"
    if not job.folder:
        default = ""
    output = job.option_value("output", str, default)
    error_output = job.option_value("error", str, "")
    if in_container:
        set_files_of_container(job, output, error_output)
        return
    job.set_field("folder", job.folder, "chdir")
    job.set_field("output", output, "output")
    job.set_field("error_output", error_output, "error")
