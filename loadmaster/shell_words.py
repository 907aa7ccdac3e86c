"""Words of a text as `shlex` reads them, in time in proportion to the text's length.

`shlex` takes time in the square of a word's length: 19 s for one of 2 MB.
"""

import re
from itertools import repeat

_SPACE = 1
_DOUBLE = 4
"""Groups of the patterns below: white space, and text in double quotes."""


def _pieces(excluded: str) -> re.Pattern[str]:
    """Return the pattern of a piece of a word, with a group for each kind.

    The kinds are white space, bare text without `excluded` characters, text in single quotes, text
    in double quotes, and a character after a backslash.
    """
    bare = rf"""([ \t\r\n]+)|([^'"\\ \t\r\n{excluded}]+)"""
    quoted = r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)"""
    return re.compile(f"{bare}|{quoted}", re.DOTALL)


_ALL = _pieces("")
_BEFORE_COMMENT = _pieces("#")


def split(text: str, *, comments: bool = False) -> list[str]:
    """Split a text into words as a POSIX shell does; with `comments`, # begins a comment.

    Raises ValueError for a quotation mark that is not closed, or a backslash at the end.
    """
    words: list[str] = []
    pieces_of_word: list[str] = []
    end = 0
    pattern = _BEFORE_COMMENT if comments else _ALL

    # 1. Read pieces until one does not follow the last one: there a comment or an error begins.
    # No function is called for a piece: where a frame crosses a chunk of the interpreter's stack,
    # calls take twenty times as long.
    for match in pattern.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        kind = match.lastindex or 0
        if kind != _SPACE:
            piece = match[kind]
            if kind == _DOUBLE and "\\" in piece:
                # In double quotes a backslash escapes a backslash or a double quote.
                parts = piece.split("\\\\")
                piece = "\\".join(map(str.replace, parts, repeat('\\"'), repeat('"')))
            pieces_of_word.append(piece)
        elif pieces_of_word:
            words.append("".join(pieces_of_word))
            pieces_of_word.clear()

    # 2. The rest is a comment, or else an error; the last word may end with the text.
    is_comment = comments and text[end : end + 1] == "#"
    if end < len(text) and not is_comment:
        raise ValueError("a quotation mark is not closed, or nothing follows a backslash")
    if pieces_of_word:
        words.append("".join(pieces_of_word))
    return words


_NO_SYNTAX = str.maketrans(dict.fromkeys("|&;<>*?[]{}~", "_"))
"""Replacement of a shell's syntax in double quotes, where it reads variables and nothing else."""


def active(text: str) -> list[tuple[str, str]]:
    """Return the words of `split`, each with its active part, in which a shell reads syntax.

    There, text that is quoted or follows a backslash is replaced by _.
    """
    words: list[tuple[str, str]] = []
    word: list[str] = []
    read: list[str] = []
    for piece in _ALL.finditer(text):
        space, bare, single, double, escaped = piece.groups()
        if space is not None:
            if word:
                words.append(("".join(word), "".join(read)))
                word.clear()
                read.clear()
        elif bare is not None:
            word.append(bare)
            read.append(bare)
        elif double is not None:
            word.append(double)
            read.append(re.sub(r"\\.", "_", double, flags=re.DOTALL).translate(_NO_SYNTAX))
        else:
            word.append(single or escaped or "")
            read.append("_")
    if word:
        words.append(("".join(word), "".join(read)))
    return words


def begins_another_line(text: str) -> bool:
    """Return True if a word that is no option begins another line, outside of quotes."""
    text = text.strip()
    spaces = [piece for piece in _ALL.finditer(text) if piece[_SPACE]]
    return any("\n" in piece[0] and text[piece.end()] != "-" for piece in spaces)
