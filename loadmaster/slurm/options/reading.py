"""Options of batch scripts and of Slurm's programs, read as Slurm reads them.

This module reads their names and values; `jobs.submission.sbatch` gives those of a script their
meaning.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice

from loadmaster import shell_words
from loadmaster.slurm.options import sbatch_table

MAX_SCRIPT = 262_144
"""Characters of a script: data and programs belong into files."""

MAX_OPTIONS = 1000
"""Options that a script may have, and a command line."""

NAMED = 10
"""Problems of a script that a message names."""

LONGEST_NAME = 60
"""Characters of a wrong option that are looked at and shown."""

OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}
"""Options of which the last one holds."""

COMMAND_LINE = "command line"
"""Place of options that stand in no script."""

PREFIX = "#SBATCH"


class ScriptError(ValueError):
    """Script that cannot be submitted; `problems` are sentences that name line and remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ValueMissingError(ScriptError):
    """Last option of a line without its value, which may stand in the next line.

    `word` is the word of the option, `options` are those before it.
    """

    word: str = ""
    options: "Sequence[GivenOption]" = ()


@dataclass(frozen=True, slots=True)
class GivenOption:
    """Option as it was given, with its value, "" if it has none.

    `place`: its line, or the command line.
    """

    name: str
    value: str
    place: str

    def __str__(self) -> str:
        """Return the place and the option, as messages begin."""
        return f"{self.place}: --{self.name}"


@dataclass(frozen=True, slots=True)
class Program:
    """Program of Slurm with its options.

    `needs`, by name: "=" for an option that needs a value, "?" for one that may have a value after
    `=` (or its letter), "" for one without. `shorts`: names by letter. `aliases`: names by other
    names.
    """

    name: str
    needs: Mapping[str, str]
    shorts: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, flags: str, values: str) -> "Program":
        """Return a program with options such as `n:ntasks`; a flag `nice?` may have a value."""
        needs = dict[str, str]()
        shorts = dict[str, str]()
        for words, value in ((flags, ""), (values, "=")):
            for word in words.split():
                short, _, option = word.rpartition(":")
                plain = option.rstrip("?")
                needs[plain] = "?" if option.endswith("?") else value
                if short:
                    shorts[short] = plain
        return cls(name, needs, shorts)


SBATCH = Program("sbatch", sbatch_table.VALUES, sbatch_table.SHORT_FORMS, sbatch_table.ALIASES)


def read_words(
    words: Sequence[str], place: str, program: Program = SBATCH
) -> tuple[list[GivenOption], list[str]]:
    """Return the options before the first other word, and the words from there on.

    Raises ScriptError at an unknown option, one without its value, or more than MAX_OPTIONS.
    """
    options = list[GivenOption]()
    remaining = deque(words)
    while remaining and remaining[0].startswith("-") and remaining[0] != "-":
        word = remaining.popleft()
        if word == "--":
            break
        read = _long_option if word.startswith("--") else _short_options
        try:
            # A word of letters such as -vvv may have many options.
            of_word = list(islice(read(word, remaining, place, program), MAX_OPTIONS + 1))
        except ValueMissingError as error:
            error.word = word
            error.options = options
            raise
        options += of_word
        if len(options) > MAX_OPTIONS:
            raise ScriptError([f"{place}: has more than {MAX_OPTIONS} options; remove some"])
    return options, list(remaining)


def _long_option(
    word: str, remaining: deque[str], place: str, program: Program
) -> Iterator[GivenOption]:
    """Yield the option of a word such as --ntasks=4, or --ntasks with its value in the next one."""
    beginning, equals, value = word[2:].partition("=")
    name = _full_name(beginning, place, program)
    if equals and not program.needs[name]:
        raise ScriptError([f"{place}: --{name} takes no value; write --{name} alone"])
    if not equals and program.needs[name] == "=":
        value = _next_word(f"--{name}", remaining, place)
    yield GivenOption(name, value, place)


def _full_name(beginning: str, place: str, program: Program) -> str:
    """Return the option of this name, or the only one whose name begins so."""
    # 1. A whole name.
    if beginning in program.needs:
        return beginning
    if beginning in program.aliases:
        return program.aliases[beginning]

    # 2. The beginning of one.
    matches: list[str] = []
    if beginning:
        names = {*program.needs, *program.aliases}
        matches = sorted(name for name in names if name.startswith(beginning))
    options = {program.aliases.get(name, name) for name in matches}
    if len(options) == 1:
        return options.pop()

    # 3. The beginning of several, or of none.
    shown = beginning[:LONGEST_NAME]
    if matches:
        several = " or ".join(f"--{name}" for name in matches)
        raise ScriptError([f"{place}: --{shown} may be {several}; write it in full"])
    near = get_close_matches(shown, list(program.needs), n=1)
    hint = f"did you mean --{near[0]}?" if near else "remove it"
    raise ScriptError([f"{place}: {program.name} has no option --{shown}; {hint}"])


def _short_options(
    word: str, remaining: deque[str], place: str, program: Program
) -> Iterator[GivenOption]:
    """Yield the options of a word such as -Hn4: the rest after a letter may be its value."""
    for end, letter in enumerate(word[1:], start=2):
        if letter not in program.shorts:
            raise ScriptError([f"{place}: {program.name} has no option -{letter}; remove it"])
        name = program.shorts[letter]
        if program.needs[name] == "=":
            value = word[end:] or _next_word(f"-{letter}", remaining, place)
            yield GivenOption(name, value, place)
            return
        if program.needs[name] == "?":
            yield GivenOption(name, word[end:], place)
            return
        yield GivenOption(name, "", place)


def _next_word(option: str, remaining: deque[str], place: str) -> str:
    """Take the next word as the value of an option."""
    if not remaining:
        raise ValueMissingError([f"{place}: {option} needs a value; write it behind"])
    return remaining.popleft()


def option_lines(script: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each `#SBATCH` line before the script's first command."""
    for number, line in _lines_before_commands(script):
        if line.startswith(PREFIX):
            yield number, line.removeprefix(PREFIX)


def _lines_before_commands(script: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the comments and empty lines before the first command."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line


def late_lines(script: str) -> Iterator[str]:
    """Yield a warning of the first `#SBATCH` line after the script's first command."""
    numbers_read = {number for number, _ in option_lines(script)}
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith(f"{PREFIX} ") and number not in numbers_read:
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


def read_script(script: str) -> list[GivenOption]:
    """Return the options of a script's lines. Raises ScriptError with the first problems found.

    As with getopt, the value of a line's last option may stand at the beginning of the next line.
    """
    problems = list(text_problems(script))
    if problems:
        raise ScriptError(problems)
    options = list[GivenOption]()
    lines = deque(option_lines(script))
    unfinished = list[str]()  # the word of an option whose value may be in the next line
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
            has_value_in_next_line = lines and not lines[0][1].lstrip().startswith(("-", "#"))
            if has_value_in_next_line:
                unfinished = [error.word]
                options += error.options
            else:
                problems += error.problems
        except ScriptError as error:
            problems += error.problems
    if problems:
        raise ScriptError(problems)
    return options


def _options_of_line(words: Sequence[str], place: str) -> list[GivenOption]:
    """Return the options of a line's words. Raises ScriptError."""
    if words and words[0] in ("hetjob", "packjob"):
        remedy = "submit each part as a job of its own"
        raise ScriptError([f"{place}: jobs of several parts are not run here; {remedy}"])
    options, rest = read_words(words, place)
    if rest:
        rule = "is no option; options begin with - or --, and values with spaces are quoted"
        raise ScriptError([f"{place}: {rest[0][:LONGEST_NAME]!r} {rule}"])
    return options


def text_problems(script: str) -> Iterator[str]:
    """Yield the reasons why a text is no batch script, with line and remedy."""
    if not script.strip():
        yield "the script is empty"
        return
    if script.startswith("\ufeff"):
        yield "line 1: begins with a byte order mark; save the script as UTF-8 without one"
    elif not script.startswith("#!"):
        yield "line 1: a script begins with #! and its interpreter, such as #!/bin/bash"
    if len(script) > MAX_SCRIPT:
        limit = f"has {len(script)} characters and may have {MAX_SCRIPT}"
        yield f"the script {limit}; put data and programs into files of their own"
    for characters, problem, remedy in (
        ("\r\n", "ends with CR and LF", "run dos2unix on the script"),
        ("\0", "has a NUL character", "a script is text; call a program from one"),
    ):
        if characters in script:
            before, _, _ = script.partition(characters)
            number = before.count("\n") + 1
            yield f"line {number}: {problem}; {remedy}"


def _split(text: str, place: str) -> list[str]:
    """Return the words of a line, which may have quotes, backslashes and a comment after #."""
    try:
        return shell_words.split(text, comments=True)
    except ValueError:
        raise ScriptError([f"{place}: a quotation mark is not closed; close it"]) from None


def last_of(options: Iterable[GivenOption]) -> tuple[dict[str, GivenOption], list[str]]:
    """Return each option as it was given last, by name, and warnings of those with two values."""
    last = dict[str, GivenOption]()
    warnings = list[str]()
    for option in options:
        before = last.get(option.name)
        if before is not None and before.value != option.value:
            warnings.append(f"{option}: replaces the value of {before.place}; remove one of them")
        _replace(last, option)
    return last, warnings


def _replace(options: dict[str, GivenOption], option: GivenOption) -> None:
    """Let an option replace earlier ones of its name, and of the opposite name."""
    options[option.name] = option
    if option.name in OPPOSITES:
        options.pop(OPPOSITES[option.name], None)


def merged(
    script: Iterable[GivenOption], command_line: Iterable[GivenOption]
) -> tuple[Mapping[str, GivenOption], list[str]]:
    """Return the options in force by name, and warnings.

    Those of the command line replace those of the script.
    """
    options, warnings = last_of(script)
    of_command_line, more_warnings = last_of(command_line)
    for option in of_command_line.values():
        _replace(options, option)
    return options, [*warnings, *more_warnings]
