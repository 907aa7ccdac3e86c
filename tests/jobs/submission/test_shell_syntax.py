"""Commands written for a shell are warned about, and others are not."""

import pytest

from jobs.submission.shell_syntax import shell_warnings

Command = str | list[str]


def warning(command: Command, runtime: str = "process") -> str:
    """The only warning about a command; "" without any."""
    return "".join(shell_warnings(command, runtime))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("a && b > f", "&&, >"),
        ("a || b", "||"),
        ("cat x | sort", "|"),
        ("run;next", ";"),
        ("sort < x", "<"),
        ("python t.py 2>&1", "2>&1"),
        ("python t.py >>log", ">>"),
        ("prog &", "&"),
        ("echo $HOME", "$HOME"),
        ('echo "to $HOME"', "$HOME"),
        ("echo ${A}/x", "${A}"),
        ("x $(date)", "$(date)"),
        ("x `date`", "`date`"),
        ("ls data/*.txt", "data/*.txt"),
        ("cat part-?.csv", "part-?.csv"),
        ("cat part[0-9].csv", "part[0-9].csv"),
        ("ls ~/data", "~/data"),
        ("A=1 B=2 prog", "A=, B="),
        ("cd /tmp", "cd"),
        ("source venv/bin/activate", "source"),
        ("for i in 1 2", "for"),
        ("first\nsecond", "the end of a line"),
        ("sh -c 'a' > f", ">"),
        (["a", "&&", "b"], "&&"),
        (["a", "|", "b", ">", "f"], "|, >"),
        (["a", "$HOME"], "$HOME"),
        (["a", "$(date)"], "$(date)"),
        (["cd", "/tmp"], "cd"),
        (["A=1", "prog"], "A="),
    ],
)
def test_syntax_of_a_shell_is_named_with_script_as_the_remedy(command: Command, named: str) -> None:
    told = warning(command)
    assert told.startswith(f"command: no shell runs it, but one is needed for {named}; ")
    assert "script" in told


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 1e-3",
        "sh -c 'a && b > $X'",
        'bash -euo pipefail -c "a | b"',
        "timeout 5 /bin/bash -lc 'x; y'",
        "python -c 'import a; b'",
        "python a.py 'a|b' \"c > d\"",
        r"find . -name '*.py' -exec rm {} \;",
        "awk '{print $1}' f",
        "curl http://x/y?a=1&b=2",
        "python t.py layers=[0,1] x={a:1} --gpus [1,2]",
        "grep --include=*.py x",
        "python t.py \\\n  --lr 1",
        "python t.py\n  --lr 1\n",
        "env A=1 prog --b=2",
        ["bash", "-c", "a && b > $X"],
        ["awk", "{print $NF > 3}"],
        ["find", ".", "-name", "*.py"],
        ["python", "a.py", "a|b", "x>3"],
    ],
)
def test_what_needs_no_shell_is_not_warned_about(command: Command) -> None:
    assert warning(command) == ""


def test_an_image_has_its_own_shell_as_the_remedy() -> None:
    assert warning("a && b", "docker").endswith('run ["sh", "-c", "..."]')


def test_variables_before_the_program_have_environment_as_the_remedy() -> None:
    assert warning("A=1 prog").endswith("and variables as environment")
