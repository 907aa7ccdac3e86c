"""What others wrote does nothing to the terminal of who reads it."""

import io
import json

import pytest

from loadmaster.cli.output import _Harmless, harmless, shown

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b31m \u202egnp.exe\x00\x7f\r"


@pytest.mark.parametrize("make", [harmless, shown])
def test_nothing_a_terminal_obeys_is_left(make: object) -> None:
    assert callable(make)
    text = make(HOSTILE)
    assert not [c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"]
    assert "␛[31mred" in text.replace("\\[", "[")


def test_each_character_stands_for_itself_so_that_pieces_need_no_memory() -> None:
    assert harmless("\x1b[3") + harmless("1m") == harmless("\x1b[31m")


def test_ends_of_lines_and_tabs_stay() -> None:
    assert harmless("a\tb\r\nc\n") == "a\tb\nc\n"


def test_a_name_stays_on_its_line_and_is_no_markup() -> None:
    assert shown("[red]a[/red]\nb") == "\\[red]a\\[/red] ⏎ b"


def test_the_console_keeps_its_own_styles() -> None:
    file = io.StringIO()
    _Harmless(file=file, force_terminal=True, color_system="standard").print(
        f"[red]Error:[/red] {HOSTILE}"
    )
    printed = file.getvalue()
    assert printed.startswith("\x1b[31mError:\x1b[0m")
    assert "\x1b]0" not in printed
    assert "\x07" not in printed


def test_json_escapes_them_by_itself() -> None:
    assert "\x1b" not in json.dumps(HOSTILE)
