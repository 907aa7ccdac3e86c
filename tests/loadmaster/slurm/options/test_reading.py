"""Options of batch scripts: lines and words are read as sbatch reads them."""

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.options.reading import (
    COMMAND_LINE,
    MAX_OPTIONS,
    MAX_SCRIPT,
    NAMED,
    SBATCH,
    ScriptError,
    merged,
    read_script,
    read_words,
)

VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1)
WITH_VALUE = st.sampled_from(sorted(name for name, need in SBATCH.needs.items() if need == "="))
LETTERS = {name: letter for letter, name in SBATCH.shorts.items()}


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """Name, value, and the words that give them, long or short, with = or a space."""
    name, value = draw(WITH_VALUE), draw(VALUES)
    forms = [[f"--{name}={value}"], [f"--{name}", value]]
    if letter := LETTERS.get(name):
        forms += [[f"-{letter}{value}"], [f"-{letter}", value]]
    return name, value, draw(st.sampled_from(forms))


def problems(script: str) -> list[str]:
    with pytest.raises(ScriptError) as raised:
        read_script(script)
    return list(raised.value.problems)


@given(st.lists(written()), st.lists(VALUES.filter(lambda v: not v.startswith("-"))))
def test_words_are_options_up_to_the_first_that_is_none(
    options: list[tuple[str, str, list[str]]], rest: list[str]
) -> None:
    words = [word for _, _, form in options for word in form]
    found, left = read_words([*words, *rest], COMMAND_LINE)
    assert [(one.name, one.value) for one in found] == [(n, v) for n, v, _ in options]
    assert left == rest


@given(st.lists(st.lists(written(), min_size=1), max_size=5))
def test_quoted_lines_mean_the_same_as_words(lines: list[list[tuple[str, str, list[str]]]]) -> None:
    text = "#!/bin/sh\n" + "".join(
        f"#SBATCH {shlex.join(word for _, _, form in line for word in form)}\n" for line in lines
    )
    found = [(one.name, one.value, one.place) for one in read_script(text)]
    assert found == [
        (name, value, f"line {number}")
        for number, line in enumerate(lines, start=2)
        for name, value, _ in line
    ]


@given(st.text())
def test_any_text_is_read_or_refused_with_reasons(text: str) -> None:
    for script in (text, f"#!/bin/sh\n#SBATCH {text}"):
        with suppress(ScriptError):
            assert all(option.name in SBATCH.needs for option in read_script(script))


def test_reading_ends_at_the_first_command() -> None:
    text = (
        "#!/bin/sh\n\n# words\n  # more\n##SBATCH -n 9\n#SBATCH -n 2 # -n 3\necho\n#SBATCH -n 4\n"
    )
    assert [(one.value, one.place) for one in read_script(text)] == [("2", "line 6")]


def test_a_long_name_may_be_cut_where_one_option_begins_so() -> None:
    assert read_words(["--ntasks-per-nod=2"], COMMAND_LINE)[0][0].name == "ntasks-per-node"
    with pytest.raises(ScriptError, match="may be --mail-type or --mail-user"):
        read_words(["--mail=x"], COMMAND_LINE)


def test_two_dashes_end_the_options() -> None:
    assert read_words(["-n2", "--", "-x"], COMMAND_LINE)[1] == ["-x"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the script is empty"),
        ("echo\n", "line 1: a script begins with #! and its interpreter, such as #!/bin/bash"),
        (
            "\ufeff#!/bin/sh\n",
            "line 1: begins with a byte order mark; save the script as UTF-8 without one",
        ),
        ("#!/bin/sh\necho\r\n", "line 2: ends with CR and LF; run dos2unix on the script"),
        ("#!/bin/sh\n\0", "line 2: has a NUL character; a script is text; call a program from one"),
        ("#!/bin/sh\n#SBATCH --no-such\n", "line 2: sbatch has no option --no-such; remove it"),
        ("#!/bin/sh\n#SBATCH --tme\n", "line 2: sbatch has no option --tme; did you mean --time?"),
        ("#!/bin/sh\n#SBATCH -z\n", "line 2: sbatch has no option -z; remove it"),
        ("#!/bin/sh\n#SBATCH --time\n", "line 2: --time needs a value; write it behind"),
        ("#!/bin/sh\n#SBATCH --hold=3\n", "line 2: --hold takes no value; write --hold alone"),
        ("#!/bin/sh\n#SBATCH -J 'a\n", "line 2: a quotation mark is not closed; close it"),
        (
            "#!/bin/sh\n#SBATCH -n 2 3\n",
            "line 2: '3' is no option; options begin with - or --, and values with spaces are"
            " quoted",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line_and_a_remedy(text: str, said: str) -> None:
    assert problems(text) == [said]


def test_a_script_over_the_limit_is_refused() -> None:
    said = f"the script has {MAX_SCRIPT + 1} characters and may have {MAX_SCRIPT}"
    text = "#!/bin/sh\n".ljust(MAX_SCRIPT + 1, "#")
    assert problems(text) == [f"{said}; put data and programs into files of their own"]


def test_every_wrong_line_is_named() -> None:
    text = "#!/bin/sh\n#SBATCH --foo\n#SBATCH -n 1\n#SBATCH --bar\n"
    assert [said.split(":")[0] for said in problems(text)] == ["line 2", "line 4"]


def test_the_last_of_two_lines_holds_with_a_warning_and_the_command_line_without_one() -> None:
    lines = read_script("#!/bin/sh\n#SBATCH -n 1\n#SBATCH --ntasks=2\n")
    found, warnings = merged(lines, [])
    assert found["ntasks"].value == "2"
    assert warnings == ["line 3: --ntasks: replaces the value of line 2; remove one of them"]
    found, warnings = merged(lines[:1], read_words(["-n3"], COMMAND_LINE)[0])
    assert (found["ntasks"].value, warnings) == ("3", [])


@pytest.mark.parametrize("words", [["-" + "H" * MAX_OPTIONS], ["-n1"] * MAX_OPTIONS])
def test_words_hold_so_many_options_and_not_one_more(words: list[str]) -> None:
    assert len(read_words(words, COMMAND_LINE)[0]) == MAX_OPTIONS
    for more in ([*words, "-H"], ["-H", *words], ["-H" + words[0][1:], *words[1:]]):
        with pytest.raises(ScriptError, match=f"more than {MAX_OPTIONS} options; remove some"):
            read_words(more, COMMAND_LINE)


def test_of_a_script_with_many_problems_the_first_are_named() -> None:
    said = problems("#!/bin/sh\n" + "#SBATCH --tme=1\n" * 1000)
    assert len(said) == NAMED + 1
    assert said[-1].startswith(f"line {NAMED + 2}: is not read: after {NAMED} problems")


def test_reading_of_a_script_ends_behind_so_many_options() -> None:
    lines = "#SBATCH -n1\n" * MAX_OPTIONS
    assert len(read_script(f"#!/bin/sh\n{lines}")) == MAX_OPTIONS
    said = problems(f"#!/bin/sh\n{lines * 3}")
    assert [one.split(":")[0] for one in said] == [f"line {MAX_OPTIONS + 3}"]


def test_a_wrong_option_is_shown_in_part() -> None:
    assert len(problems(f"#!/bin/sh\n#SBATCH --{'x' * 10_000}\n")[0]) < 200
    assert len(problems(f"#!/bin/sh\n#SBATCH {'x' * 10_000}\n")[0]) < 200


def test_the_value_of_a_lines_last_option_may_begin_the_next_line() -> None:
    text = "#!/bin/sh\n#SBATCH -J a -Hn\n#SBATCH 4 -c\n#SBATCH 2\n"
    options = read_script(text)
    assert [(option.name, option.value) for option in options] == [
        ("job-name", "a"), ("hold", ""), ("ntasks", "4"), ("cpus-per-task", "2"),
    ]  # fmt: skip
    assert problems("#!/bin/sh\n#SBATCH -n\n#SBATCH -c 2\n") == [
        "line 2: -n needs a value; write it behind"
    ]


def test_options_over_lines_count_towards_the_limit() -> None:
    lines = "#SBATCH 1 -n\n" * (MAX_OPTIONS + 10)
    found = problems(f"#!/bin/sh\n#SBATCH -n\n{lines}")
    assert "options reading ends" in found[-1]
