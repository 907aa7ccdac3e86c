"""Options of containers on a script's `srun` lines: a job needs its image before the script runs.

Nothing is executed: variables are filled in where the script, or the place of submission, gives
them a value that does not depend on the script's run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmaster import shell_words
from loadmaster.slurm.options.reading import ScriptError, read_words
from loadmaster.slurm.options.srun_table import SRUN

PREFIX = "container-"
"""Beginning of the names of pyxis' options."""

_OPTION = re.compile(r"--(?:no-)?container-[a-z-]+")
_SRUN = re.compile(r"(?:.*[/(`])?srun")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SETTING = frozenset({"for", "select", "read", "mapfile", "readarray", "unset"})
"""Commands that set the variables which their words name."""

_SEPARATORS = frozenset({"then", "do", "else", "&&", "||", "{", "(", "!", "time", "export"})
"""Words behind which an assignment may stand."""

_DECLARATIONS = frozenset({"export", "readonly", "declare", "local", "typeset"})
_ARRAY = re.compile(r"\s*(?:\w+\s+)*([A-Za-z_]\w*)(\+?)=\((.*)\)\s*(?:#.*)?", re.DOTALL)
_ARRAY_BEGIN = re.compile(r"\s*(?:\w+\s+)*[A-Za-z_]\w*\+?=\([^)]*")
_VARIABLE = re.compile(
    r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?:\[[@*]\]|:?-(?P<default>[^}]*))?\}|(?P<plain>[A-Za-z_]\w*))"
)
_WORKING_FOLDER = re.compile(r"\$\(pwd(?: -P)?\)|`pwd(?: -P)?`")
_NGC_USER = "$oauthtoken@"
"""User of NVIDIA's registry, which scripts write before an image: no variable."""

LONGEST_LINE = 8000
"""Characters of a line that is read; no variable of a longer one is known."""

LONGEST_VALUE = 2000
"""Characters of a variable that is filled in."""

_DOCUMENT = re.compile(r"(?<!<)<<-?\s*[\"']?([A-Za-z_]\w*)")
_OPENING = re.compile(
    r"(?:^|[;&|]\s*|\s)(?:if|for|while|until|case|select)\s|\(\)\s*\{|^function\s"
)
_CLOSING = re.compile(r"(?:^|[;&|]\s*)(?:fi|done|esac)\b|^\}")


@dataclass(frozen=True, slots=True)
class ContainerOption:
    """Option of pyxis on an srun line, with known variables filled in.

    `place` is its line. A value that is not `is_known` has a part that only the script's run gives.
    An option without a name stands for a line that cannot be read, which is the value.
    """

    name: str
    value: str
    place: str
    is_known: bool = True

    def __str__(self) -> str:
        """The place and the option, as messages begin."""
        return f"{self.place}: --{self.name}"


def container_options(script: str, variables: Mapping[str, str]) -> list[ContainerOption]:
    """Return the options of containers on all srun lines, in order.

    `variables`: those of the place of submission, with PWD.
    """
    if PREFIX not in script:
        return []
    known: dict[str, str] = dict(variables)
    options: list[ContainerOption] = []
    depth = 0
    for number, line in _lines(script):
        place = f"line {number}"
        # 1. Values that only one of several ways through the script sets are not known.
        depth = max(0, depth + len(_OPENING.findall(line)))
        is_assignment = _take_assignments(line, known, is_certain=depth == 0)
        depth = max(0, depth - len(_CLOSING.findall(line)))

        # 2. The options of the line's srun, or a note that they cannot be read.
        if is_assignment:
            continue
        found = list(_options_of_line(line, place, known))
        if not found and _mentions_option(line):
            found = [ContainerOption("", line.strip()[:80], place)]
        options += found
    return options


def _lines(script: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line without comments; what continues one belongs to it.

    Documents such as <<EOF ... EOF are left out.
    """
    lines = script.split("\n")
    ends = {line.strip() for line in lines}
    document_end = ""
    parts: list[str] = []
    first = 0
    is_in_array = False
    for number, line in enumerate(lines, start=1):
        if document_end:
            if line.strip() == document_end:
                document_end = ""
            continue
        document = _DOCUMENT.search(line)
        if document is not None and document[1] in ends:
            document_end = document[1]
        if line.lstrip().startswith("#") and (is_in_array or not parts):
            continue
        if not parts:
            first = number
            is_in_array = _ARRAY_BEGIN.fullmatch(line) is not None
        elif is_in_array:
            is_in_array = ")" not in line
        is_continued = line.endswith("\\")
        parts.append(line.removesuffix("\\"))
        if not is_continued and not is_in_array:
            yield first, " ".join(parts)
            parts = []
    if parts:
        yield first, " ".join(parts)


def _take_assignments(line: str, known: dict[str, str], *, is_certain: bool) -> bool:
    """Note the variables that a line sets; return True if it does nothing else."""
    array = _ARRAY.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if array is not None:
        _assign(known, array[1], array[2], _expanded(array[3], known), is_certain=is_certain)
        return True
    has_assigned = False
    words = _words(line)
    for word, active in words:
        if word in _DECLARATIONS or (has_assigned and word.startswith("-")):
            has_assigned = True
            continue
        match = _ASSIGNMENT.fullmatch(word.rstrip(";"))
        if match is None:
            _forget_others([word for word, _ in words], known)
            return False
        value = match[3]
        if "$" in active or "`" in active:
            value = _expanded(value, known)
        _assign(known, match[1], match[2], value, is_certain=is_certain)
        has_assigned = True
    return has_assigned


def _forget_others(words: Sequence[str], known: dict[str, str]) -> None:
    """Forget variables that a line may set behind another command, such as `test && A=1`."""
    if words[0] in _SETTING:
        for word in words[1:]:
            known.pop(word, None)
    for before, word in pairwise(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is not None and (before in _SEPARATORS or before.endswith((";", ")"))):
            known.pop(match[1], None)


def _assign(known: dict[str, str], name: str, plus: str, value: str, *, is_certain: bool) -> None:
    """Set a variable, or add to it after +=; one that is not certain becomes unknown."""
    if plus:
        separator = " " if value.startswith("-") else ""
        value = known.get(name, "") + separator + value
    known.pop(name, None)
    if is_certain and len(value) <= LONGEST_VALUE:
        known[name] = value


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Return a text with the values of known variables; others stay as they are."""

    def value_of(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        if name in known:
            return known[name]
        if match["default"] is not None:
            return match["default"].strip("\"'")
        return match[0]

    text = _WORKING_FOLDER.sub(lambda match: known.get("PWD", match[0]), text)
    return _VARIABLE.sub(value_of, text)


def _words(line: str) -> list[tuple[str, str]]:
    """Return the words of a line, each with what a shell would read in it; none of a long one.

    Of a quotation that goes on in the next lines, as after `bash -c`, the words before it count.
    """
    if len(line) > LONGEST_LINE:
        return []
    return shell_words.words_with_syntax(line)


def _options_of_line(line: str, place: str, known: Mapping[str, str]) -> Iterator[ContainerOption]:
    """Yield the options of containers of a line's first srun."""
    words = _expanded_words(line, known)
    for position, word in enumerate(words):
        if _SRUN.fullmatch(word):
            yield from _options_of_words(words[position + 1 :], place)
            return


def _expanded_words(line: str, known: Mapping[str, str]) -> list[str]:
    """Return the words of a line with known variables; one that holds options becomes several."""
    words: list[str] = []
    for word, active in _words(line):
        text = word
        if "$" in active or "`" in active:
            text = _expanded(word, known)
        is_variable = word.startswith("$") and text != word
        try:
            words += shlex.split(text) if is_variable else [text]
        except ValueError:
            words.append(text)
    return words


def _options_of_words(words: Sequence[str], place: str) -> Iterator[ContainerOption]:
    """Yield the options of containers before the program of a step."""
    left: list[str] = []
    for word in words:
        # A variable that is not known, such as $ARGS, may hold any options: it is passed over.
        is_value = bool(left) and _awaits_value(left[-1])
        if is_value or not word.startswith(("$", "`")):
            left.append(word)
    try:
        given, _ = read_words(left, place, SRUN)
    except ScriptError:
        return
    for option in given:
        if option.name.removeprefix("no-").startswith(PREFIX):
            text = option.value.replace(_NGC_USER, "")
            is_known = "$" not in text and "`" not in text
            yield ContainerOption(option.name, option.value, place, is_known)


def _awaits_value(word: str) -> bool:
    """Return True if the next word is the value of this option."""
    if word.startswith("--"):
        return SRUN.needs.get(word[2:]) == "="
    name = SRUN.shorts.get(word[1:], "") if word.startswith("-") else ""
    return SRUN.needs.get(name) == "="


def _mentions_option(line: str) -> bool:
    """Return True if a line has an option of containers outside of comments."""
    text, _, _ = line.partition(" #")
    return _OPTION.search(text) is not None
