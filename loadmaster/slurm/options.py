"""Options of batch scripts and of srun, read as Slurm reads them.

What an option means is read later (`jobs.submission.sbatch`); here are its names and values.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice

from loadmaster import shell_words
from loadmaster.slurm import sbatch_options

MAX_SCRIPT = 262_144
"""Characters of a script: data and programs belong into files."""

MAX_OPTIONS = 1000
"""Options of a script, and of a command line."""

NAMED = 10
"""Problems that are named of a script with more."""

LONGEST_NAME = 60
"""Characters of a wrong option that are looked at and shown."""

OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}
"""Options of which the last one holds."""

COMMAND_LINE = "command line"
PREFIX = "#SBATCH"


class ScriptError(ValueError):
    """Script that cannot be submitted; `problems` are sentences that name line and remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ValueMissingError(ScriptError):
    """Last option of some words without the value that it needs; `word` is its word.

    `options` are those before it.
    """

    word: str = ""
    options: "Sequence[Given]" = ()


@dataclass(frozen=True, slots=True)
class Given:
    """Option with its value, "" if it has none; `place` is its line or the command line."""

    name: str
    value: str
    place: str

    def __str__(self) -> str:
        """The place and the option, as messages begin."""
        return f"{self.place}: --{self.name}"


@dataclass(frozen=True, slots=True)
class Program:
    """Program with its options by name, and their names by short form.

    An option "=" takes a value, "?" may have one after `=` (or its letter), "" has none; `aliases`
    are further names of options.
    """

    name: str
    needs: Mapping[str, str]
    shorts: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, flags: str, values: str) -> "Program":
        """Program with options such as `n:ntasks`; a flag `label?` may have a value."""
        needs, shorts = dict[str, str](), dict[str, str]()
        for words, value in ((flags, ""), (values, "=")):
            for word in words.split():
                short, _, option = word.rpartition(":")
                plain = option.rstrip("?")
                needs[plain] = "?" if option.endswith("?") else value
                if short:
                    shorts[short] = plain
        return cls(name, needs, shorts)


SBATCH = Program(
    "sbatch", sbatch_options.VALUES, sbatch_options.SHORT_FORMS, sbatch_options.ALIASES
)


def read_words(
    words: Sequence[str], place: str, program: Program = SBATCH
) -> tuple[list[Given], list[str]]:
    """Return options up to the first word that is none, and the words from there on.

    Raises ScriptError at an option that the program has not, one without its value, or more than
    MAX_OPTIONS.
    """
    found, left = list[Given](), deque(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.popleft()
        if word == "--":
            break
        read = _long if word.startswith("--") else _short
        try:
            options = list(islice(read(word, left, place, program), MAX_OPTIONS + 1))
        except ValueMissingError as error:
            error.word = word
            error.options = found
            raise
        found += options
        if len(found) > MAX_OPTIONS:
            raise ScriptError([f"{place}: has more than {MAX_OPTIONS} options; remove some"])
    return found, list(left)


def _long(word: str, left: deque[str], place: str, program: Program) -> Iterator[Given]:
    given, equals, value = word[2:].partition("=")
    name = _full_name(given, place, program)
    if equals and not program.needs[name]:
        raise ScriptError([f"{place}: --{name} takes no value; write --{name} alone"])
    if not equals and program.needs[name] == "=":
        value = _following(f"--{name}", left, place)
    yield Given(name, value, place)


def _full_name(given: str, place: str, program: Program) -> str:
    """Return the option of this name, or of this beginning if all that begin so are one option."""
    if given in program.needs:
        return given
    names = {**{name: name for name in program.needs}, **program.aliases}
    if given in names:
        return names[given]
    beginnings = sorted(name for name in names if given and name.startswith(given))
    meant = {names[name] for name in beginnings}
    if len(meant) == 1:
        return meant.pop()
    given = given[:LONGEST_NAME]
    if beginnings:
        several = " or ".join(f"--{name}" for name in beginnings)
        raise ScriptError([f"{place}: --{given} may be {several}; write it in full"])
    near = get_close_matches(given, list(program.needs), n=1)
    hint = f"did you mean --{near[0]}?" if near else "remove it"
    raise ScriptError([f"{place}: {program.name} has no option --{given}; {hint}"])


def _short(word: str, left: deque[str], place: str, program: Program) -> Iterator[Given]:
    for end, letter in enumerate(word[1:], start=2):
        if letter not in program.shorts:
            raise ScriptError([f"{place}: {program.name} has no option -{letter}; remove it"])
        name = program.shorts[letter]
        if program.needs[name] == "=":
            yield Given(name, word[end:] or _following(f"-{letter}", left, place), place)
            return
        if program.needs[name] == "?":
            yield Given(name, word[end:], place)
            return
        yield Given(name, "", place)


def _following(option: str, left: deque[str], place: str) -> str:
    if not left:
        raise ValueMissingError([f"{place}: {option} needs a value; write it behind"])
    return left.popleft()


def option_lines(script: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each `#SBATCH` line before the script's first command."""
    for number, line in _lines_before_commands(script):
        if line.startswith(PREFIX):
            yield number, line.removeprefix(PREFIX)


def _lines_before_commands(script: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(script.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line


def late_lines(script: str) -> Iterator[str]:
    """Yield a warning of the first `#SBATCH` line after the script's first command."""
    read = {number for number, _ in option_lines(script)}
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith(f"{PREFIX} ") and number not in read:
            yield f"line {number}: {PREFIX} behind the first command is not read; move it up"
            return


def lines_of_other_systems(script: str) -> Iterator[str]:
    """Yield a warning of the first line with options for PBS, and of the first for LSF."""
    for prefix in ("#PBS", "#BSUB"):
        for number, line in _lines_before_commands(script):
            if line.startswith(f"{prefix} "):
                remedy = f"write their options as {PREFIX} lines"
                yield f"line {number}: {prefix} lines are not read; {remedy}"
                break


def read_script(script: str) -> list[Given]:
    """Return the options of a script's lines. Raises ScriptError with the first problems found.

    As of getopt, the value of a line's last option may stand at the beginning of the next line.
    """
    problems = list(text_problems(script))
    if problems:
        raise ScriptError(problems)
    options = list[Given]()
    lines = deque(option_lines(script))
    unfinished = list[str]()
    while lines:
        number, text = lines.popleft()
        place = f"line {number}"
        if len(problems) == NAMED or len(options) > MAX_OPTIONS:
            limit = f"after {NAMED} problems or {MAX_OPTIONS} options reading ends"
            problems.append(f"{place}: is not read: {limit}; mend or remove some")
            break
        try:
            words = [*unfinished, *_split(text, place)]
            unfinished = []
            options += _options_of_line(words, place)
        except ValueMissingError as error:
            if lines and not lines[0][1].lstrip().startswith(("-", "#")):
                unfinished = [error.word]
                options += error.options
            else:
                problems += error.problems
        except ScriptError as error:
            problems += error.problems
    if problems:
        raise ScriptError(problems)
    return options


def _options_of_line(words: Sequence[str], place: str) -> list[Given]:
    if words and words[0] in ("hetjob", "packjob"):
        remedy = "submit each part as a job of its own"
        raise ScriptError([f"{place}: jobs of several parts are not run here; {remedy}"])
    options, rest = read_words(words, place)
    if rest:
        rule = "is no option; options begin with - or --, and values with spaces are quoted"
        raise ScriptError([f"{place}: {rest[0][:LONGEST_NAME]!r} {rule}"])
    return options


def text_problems(script: str) -> Iterator[str]:
    """Yield what makes a text no batch script, with its line and the remedy."""
    if not script.strip():
        yield "the script is empty"
        return
    if script.startswith("\ufeff"):
        yield "line 1: begins with a byte order mark; save the script as UTF-8 without one"
    elif not script.startswith("#!"):
        yield "line 1: a script begins with #! and its interpreter, such as #!/bin/bash"
    if len(script) > MAX_SCRIPT:
        said = f"has {len(script)} characters and may have {MAX_SCRIPT}"
        yield f"the script {said}; put data and programs into files of their own"
    for wrong, name, remedy in (
        ("\r\n", "ends with CR and LF", "run dos2unix on the script"),
        ("\0", "has a NUL character", "a script is text; call a program from one"),
    ):
        if wrong in script:
            yield f"line {script[: script.index(wrong)].count(chr(10)) + 1}: {name}; {remedy}"


def _split(text: str, place: str) -> list[str]:
    """Words of a line: quotes, backslashes, and a comment from # on."""
    try:
        return shell_words.split(text, comments=True)
    except ValueError:
        raise ScriptError([f"{place}: a quotation mark is not closed; close it"]) from None


def last_of(given: Iterable[Given]) -> tuple[dict[str, Given], list[str]]:
    """Return each option's last value, and a warning for each that stands there twice."""
    found, warnings = dict[str, Given](), list[str]()
    for one in given:
        if (before := found.get(one.name)) and before.value != one.value:
            warnings.append(f"{one}: replaces the value of {before.place}; remove one of them")
        _put(found, one)
    return found, warnings


def _put(options: dict[str, Given], option: Given) -> None:
    """Let an option hold over earlier ones of its name, and over its opposite."""
    options[option.name] = option
    if option.name in OPPOSITES:
        options.pop(OPPOSITES[option.name], None)


def merged(
    script: Iterable[Given], command_line: Iterable[Given]
) -> tuple[Mapping[str, Given], list[str]]:
    """Return each option in force, the command line's over the script's, and warnings."""
    options, warnings = last_of(script)
    words, more_warnings = last_of(command_line)
    for option in words.values():
        _put(options, option)
    return options, [*warnings, *more_warnings]
