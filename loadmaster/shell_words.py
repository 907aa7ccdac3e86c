"""Words of a text as `shlex` reads them, in time in proportion to the text's length.

`shlex` takes time in the square of a word's length: 19 s for one of 2 MB.
"""

import re
from itertools import repeat

_SPACE, _DOUBLE = 1, 4


def _pieces(of_none: str) -> re.Pattern[str]:
    """Pattern of space, bare text without `of_none`, text in ' and in ", and what follows a \\."""
    bare = rf"""([ \t\r\n]+)|([^'"\\ \t\r\n{of_none}]+)"""
    quoted = r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)"""
    return re.compile(f"{bare}|{quoted}", re.DOTALL)


_ALL, _BEFORE_COMMENT = _pieces(""), _pieces("#")


def split(text: str, *, comments: bool = False) -> list[str]:
    """Words of a POSIX shell: quotes, backslashes, and with `comments` a comment from # on.

    Raises ValueError for a quotation mark that is not closed, or a backslash at the end.
    """
    words, word, end = list[str](), list[str](), 0
    # No function is called for a piece: where a frame crosses a chunk of the interpreter's stack,
    # calls take twenty times as long.
    for piece in (_BEFORE_COMMENT if comments else _ALL).finditer(text):
        if piece.start() != end:
            break
        end, kind = piece.end(), piece.lastindex or 0
        if kind != _SPACE:
            found = piece[kind]
            if kind == _DOUBLE and "\\" in found:
                parts = found.split("\\\\")
                found = "\\".join(map(str.replace, parts, repeat('\\"'), repeat('"')))
            word.append(found)
        elif word:
            words.append("".join(word))
            word.clear()
    if end < len(text) and not (comments and text[end] == "#"):
        raise ValueError("a quotation mark is not closed, or nothing follows a backslash")
    return [*words, "".join(word)] if word else words


_NO_SYNTAX = str.maketrans(dict.fromkeys("|&;<>*?[]{}~", "_"))
"""Of text in double quotes a shell reads variables and nothing else."""


def active(text: str) -> list[tuple[str, str]]:
    """Words of `split`, each with the part of it that a shell would read.

    There, what is quoted or follows a backslash is replaced by _.
    """
    words: list[tuple[str, str]] = []
    word, read = list[str](), list[str]()
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
    return [*words, ("".join(word), "".join(read))] if word else words


def begins_another_line(text: str) -> bool:
    """Return True if a word that is no option begins another line, outside of quotes."""
    text = text.strip()
    spaces = [piece for piece in _ALL.finditer(text) if piece[_SPACE]]
    return any("\n" in piece[0] and text[piece.end()] != "-" for piece in spaces)
