"""Options and values are read as a real sbatch reads them. Needs `tests/with-slurm`."""

import re
import subprocess
from collections.abc import Callable
from datetime import datetime
from math import ceil
from pathlib import Path

import pytest

from jobs.submission.array_expression import array_indices
from jobs.submission.fields import FieldError
from loadmaster.slurm.options import values
from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.reading import COMMAND_LINE, ScriptError, read_words
from loadmaster.slurm.options.sbatch_table import ALIASES, VALUES
from loadmaster.slurm.options.values import ValueFormatError

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]

SHOWS_HELP = ("help", "usage", "version")


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/sh\ntrue\n")
    return str(path)


def sbatch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sbatch", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def held_job(script: str, option: str) -> dict[str, str] | None:
    """Fields of a job that Slurm makes of an option; None if it refuses it."""
    number = sbatch("-H", "--parsable", option, script).stdout.strip()
    if not number:
        return None
    shown = subprocess.run(
        ["scontrol", "show", "job", "-o", number], capture_output=True, text=True, check=True
    ).stdout
    subprocess.run(["scancel", number], check=True)
    return dict(re.findall(r"(\w+)=(\S*)", shown.splitlines()[0]))


def read(reader: Callable[[str], object], text: str) -> object:
    """Value of a text, or "refused"."""
    try:
        return reader(text)
    except (ValueFormatError, FieldError):
        return "refused"


def test_each_long_option_of_this_slurm_is_known() -> None:
    named = set(re.findall(r"--([a-z][a-z-]*[a-z])(?=[ =\[])", sbatch("--help").stdout))
    assert len(named) > 80
    assert named - {"mem", "export"} <= VALUES.keys() | {"uid"}


@pytest.mark.parametrize("name", [n for n in (*VALUES, *ALIASES) if n not in SHOWS_HELP])
def test_an_option_takes_a_value_where_sbatch_does(name: str) -> None:
    alone = sbatch("--test-only", f"--{name}").stderr
    if "unrecognized option" in alone or "is ambiguous" in alone:
        return  # of a newer Slurm, or of a plug-in
    with_value = sbatch("--test-only", f"--{name}=1", "/no/such/script").stderr
    form = "?"
    if "requires an argument" in alone:
        form = "="
    elif "doesn't allow an argument" in with_value:
        form = ""
    assert VALUES[ALIASES.get(name, name)] == form


@pytest.mark.parametrize(
    "word",
    ["--ta=2", "--tasks=2", "--nt=2", "--no", "--ho", "--exc=n1", "--mai=x", "--gpu=1", "--w=x",
     "--get=3", "--koff", "-koff", "-k", "-Hn4", "-H4", "-v3", "-vvv", "-n4", "-n=4", "--hold=1",
     "--NTASKS=3", "-z", "--ntasks-per-t=2"],
)  # fmt: skip
def test_a_word_is_an_option_where_sbatch_takes_it(script: str, word: str) -> None:
    slurm = sbatch("--test-only", word, script)
    is_read = 'Try "sbatch --help"' not in slurm.stderr
    try:
        read_words([word], COMMAND_LINE)
    except ScriptError:
        assert not is_read
    else:
        assert is_read


@pytest.mark.parametrize(
    "text",
    ["-1", "2-", "2-1", "0", "0:0", "5", "0:10", "1:30", "90:90", "1:30:00", "1-0", "1-24",
     "1-0:90", "0-0:0:30", "01-00:00:00", "INFINITE", "unlimited", "Unlimited", "", "-5:00", "+5",
     "5m", "1d", "1:", ":30", "1-:30", " 5", "5.5", "1:2:3:4", "2-3-4", "soon", "2147483647"],
)  # fmt: skip
def test_a_time_limit_is_the_same(script: str, text: str) -> None:
    job = held_job(script, f"--time={text}")
    own = read(values.time_s, text)
    if job is None:
        assert own == "refused"
    else:
        assert own != "refused"
        limit_s = _seconds(job["TimeLimit"])
        assert limit_s == (ceil(float(str(own)) / 60) * 60 if own is not None else None)


def _seconds(text: str) -> float | None:
    """Seconds of a limit as scontrol shows it, D-HH:MM:SS."""
    if text == "UNLIMITED":
        return None
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


@pytest.mark.parametrize(
    "text",
    ["16:00", "1:00", "23:59:30", "4:00pm", "4:00 pm", "12:00am", "12:00pm", "0:00", "fika",
     "teatime", "noon", "midnight", "tomorrow", "tomorrow-16:00", "tomorrow noon",
     "noon-tomorrow", "noon 12/25", "01/31/37-16:00", "01/31/37", "01/31", "12/25", "11/01",
     "013137", "0131", "1225", "013137-16:00", "01.31.37", "01.31", "2037-01-31",
     "2037-01-31T16:00", "2037-01-31T16:00:30", "2037-01-31-16:00", "2037-01-31 16:00",
     "2037-01-31T", "2037-02-30", "02/29/36", "16:00-01/31/37", "16:00 0131", "2037-01-31T4:00pm",
     "2037-01-31Tnoon", "fika tomorrow", "midnight 01/01/37", "noon16:00", "now+2hours",
     "now+1day", "now + 99", "16", "4pm", "13:00pm", "24:00", "31.01.37", "", "soon", "monday",
     "+5", "now+5s", "1600", "16:00:00.5", "now+1hour-5", "2037-01", "13/01/37", "01/32/37",
     "01/31/2037", "20370131", "2037-01-31T16", "fikaa", "16:00am", "now+-5"],
)  # fmt: skip
def test_a_beginning_is_the_same(script: str, text: str) -> None:
    job = held_job(script, f"--begin={text}")
    own = read(lambda given: moment(given, datetime.now().astimezone()), text)
    if job is None:
        assert own == "refused"
    else:
        assert isinstance(own, datetime)
        theirs = datetime.fromisoformat(job["EligibleTime"]).astimezone()
        assert abs((own - theirs).total_seconds()) < 5


@pytest.mark.parametrize(
    "text",
    ["USR1", "USR1@10", "SIGUSR1@10", "usr1", "R:USR1@10", "B:USR1@10", "RB:USR1", "BR:USR1",
     "RUSR1", "BUSR1", "B:10", "10@60", "10", "64", "USR1@", "USR1@65535", "USR1@0", "KILL",
     "r:USR1", "b:usr1@5", ":USR1", "XCPU", " USR1", "0", "B:", "@10", "", "USR1@x",
     "USR1@65536", "USR1@-1", "TERM@1:00", "B:B:USR1", "USR3", "RTMIN", "WINCH", "C:USR1", "SEGV"],
)  # fmt: skip
def test_a_signal_is_accepted_where_sbatch_takes_it(script: str, text: str) -> None:
    slurm = sbatch("--test-only", f"--signal={text}", script)
    assert (read(values.end_signal, text) == "refused") == (slurm.returncode != 0)


@pytest.mark.parametrize(
    "text",
    ["1-3", "[1-3]", "1-3%2", "[1-3]%2", "[1-3%2]", "1-10:3", "1,3,5-7", "3", "1-3%0", "01-03",
     "1-3,", ",1", "1-3, 5", "1-5:2%3", "1-3%x", "1,2%1,3", "5-1", "1-3:0", "1--3", "-1", "1-3;5"],
)  # fmt: skip
def test_an_array_has_the_same_indices(script: str, text: str) -> None:
    job = held_job(script, f"--array={text}")
    own = read(lambda given: array_indices(values.array_text(given)), text)
    if job is None:
        assert own == "refused"
    else:
        assert own == array_indices(job["ArrayTaskId"]) or own.indices == (  # type: ignore[attr-defined]
            array_indices(job["ArrayTaskId"]).indices
        )


@pytest.mark.parametrize(
    "text",
    ["singleton", "SINGLETON", "", "0", "afterok:1", "afterok:1,2", "afterok:1:2,afterany:3", "1",
     "1,2", "AFTEROK:1", "afternotok:1", "singleton,afterok:1", "afterok: 1", "afterok:1:1",
     "afterok:9_1", "afterok:9_*", "afterok:9_[1-2]", "1:2", "afterok", "afterok:", "afterok:x",
     "afterok:1,", ",afterok:1", "afterok:1 afterok:2", "before:1", "afterok:$X", "none",
     "afterok:1::2", "after:1", "after:1+5", "after:1+5:2+07,afterok:3", "after:1:2+90", "after:1+",
     "after:1+x", "after:1+-5", "AFTER:1+5", "after:9_1+5", "afterok:1?afterany:2",
     "afterok:1:2?after:3+5", "afterok:1?2", "?afterok:1", "afterok:1?", "aftercorr:9?afterok:1"],
)  # fmt: skip
def test_a_dependency_is_the_same(script: str, text: str) -> None:
    """1, 2 and 3 are jobs and 9 is an array that are there."""
    numbers = {name: sbatch("-H", "--parsable", script).stdout.strip() for name in "123"}
    numbers["9"] = sbatch("-H", "--parsable", "-a1-2", script).stdout.strip()
    given = re.sub(r"(?<![_\[-])[1239](?![\d\]-])", lambda match: numbers[match[0]], text)
    job = held_job(script, f"--dependency={given}")
    subprocess.run(["scancel", *numbers.values()], check=True)
    own = read(values.dependencies, given)
    if job is None:
        assert own == "refused"
        return
    theirs = job["Dependency"].replace("(unfulfilled)", "").replace("_*", "")
    assert isinstance(own, list)
    if "?" in theirs:
        (alternatives,) = own  # in one text here
        own = alternatives.split("?")
    assert sorted(set(own)) == sorted(set(re.split("[,?]", theirs)) - {"(null)"})


@pytest.mark.parametrize("text", ["1", "01", "+2", "0", "-1", "1k", "2.5", "x", "", "=3"])
def test_a_number_of_tasks_is_accepted_where_sbatch_takes_it(script: str, text: str) -> None:
    slurm = sbatch("--test-only", f"--ntasks={text}", script)
    is_number = "Invalid numeric value" not in slurm.stderr
    assert (read(values.count, text) != "refused") == is_number


@pytest.mark.parametrize("text", ["0", "1", "1-2", "2-1", "1k", "x", "1,2", "1-4:2", ""])
def test_a_number_of_nodes_is_accepted_where_sbatch_takes_it(script: str, text: str) -> None:
    slurm = sbatch("--test-only", f"--nodes={text}", script)
    is_number = "node count" not in slurm.stderr
    assert (read(values.nodes, text) != "refused") == is_number
