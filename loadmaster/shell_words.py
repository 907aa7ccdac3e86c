"""Words of a text as `shlex` reads them, in time in proportion to the text's length.

`shlex` takes time in the square of a word's length: 19 s for one of 2 MB.
"""

import re


def _pieces(excluded: str) -> re.Pattern[str]:
    """Return the pattern of a piece of a text, with a named group for each kind.

    `excluded`: characters that bare text may not have.
    """
    kinds = (
        r"(?P<space>[ \t\r\n]+)",
        rf"(?P<bare>[^'\"\\ \t\r\n{excluded}]+)",
        r"'(?P<single>[^']*)'",  # in single quotes all characters stand for themselves
        r'"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"',
        r"\\(?P<escaped>.)",
    )
    return re.compile("|".join(kinds), re.DOTALL)


_PIECE = _pieces("")
_PIECE_WITHOUT_HASH = _pieces("#")
"""Pieces where # is a character like others, and where it begins a comment."""


def split(text: str, *, comments: bool = False) -> list[str]:
    """Split a text into words as a POSIX shell does; with `comments`, # begins a comment.

    Raises ValueError for a quotation mark that is not closed, or a backslash at the end.
    """
    words: list[str] = []
    pieces_of_word: list[str] = []
    end = 0
    pattern = _PIECE_WITHOUT_HASH if comments else _PIECE

    # 1. Read pieces until one does not follow the last one: there a comment or an error begins.
    #    A function called for each piece was measured to take up to twenty times as long.
    for match in pattern.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            piece = match[kind]
            if kind == "double" and "\\" in piece:
                # In double quotes a backslash escapes a backslash or a double quote.
                parts = [part.replace('\\"', '"') for part in piece.split("\\\\")]
                piece = "\\".join(parts)
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


def words_with_syntax(text: str) -> list[tuple[str, str]]:
    """Return the words of `split`, each with the part of it in which a shell reads syntax.

    There, text that is quoted or follows a backslash is replaced by _: the word `a'b*'$c` comes
    with `a_$c`.
    """
    words: list[tuple[str, str]] = []
    word: list[str] = []
    syntax: list[str] = []
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup or ""
        content = piece[kind]
        if kind == "space":
            if word:
                words.append(("".join(word), "".join(syntax)))
                word.clear()
                syntax.clear()
        elif kind == "bare":
            word.append(content)
            syntax.append(content)
        elif kind == "double":
            word.append(content)
            without_escaped = re.sub(r"\\.", "_", content, flags=re.DOTALL)
            syntax.append(without_escaped.translate(_NO_SYNTAX))
        else:  # in single quotes, or after a backslash
            word.append(content)
            syntax.append("_")
    if word:
        words.append(("".join(word), "".join(syntax)))
    return words


def begins_another_line(text: str) -> bool:
    """Return True if a word that is no option begins another line, outside of quotes."""
    text = text.strip()
    for piece in _PIECE.finditer(text):
        has_line_end = piece.lastgroup == "space" and "\n" in piece[0]
        if has_line_end and text[piece.end()] != "-":  # something follows: the text is stripped
            return True
    return False
