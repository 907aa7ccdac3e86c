"""Cells of CSV files that no spreadsheet takes for a formula."""

from __future__ import annotations

import re

_BLANK = "\\s\\x00-\\x1f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff"
_FORMULA = re.compile(f"(^|[;|\\t\\r\\n])([{_BLANK}]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\\t\\r])")
"""A cell's beginning, and there the sign of a formula, as wide as in East Asian texts too."""


def plain(cell: object) -> object:
    """A cell no spreadsheet takes for a formula: an apostrophe stands before what would begin one.

    Beginnings are looked for behind blanks and invisible signs, which some programs leave out, and
    behind what others take for the end of a cell (a semicolon, a tab, a line's end).
    """
    return _FORMULA.sub(r"\1'\2", cell) if isinstance(cell, str) else cell
