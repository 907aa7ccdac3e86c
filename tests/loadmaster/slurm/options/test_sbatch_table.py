"""Table of sbatch's options: their forms, and a treatment for each."""

import pytest

from loadmaster.slurm.options.reading import COMMAND_LINE, ScriptError, read_words
from loadmaster.slurm.options.sbatch_table import ALIASES, REASONS, SHORT_FORMS, TREATMENTS, VALUES


def names_of(*words: str) -> list[str]:
    return [option.name for option in read_words(words, COMMAND_LINE)[0]]


def test_names_are_sorted_and_short_forms_differ() -> None:
    assert list(VALUES) == sorted(VALUES)
    assert len(SHORT_FORMS) == 34
    assert set(SHORT_FORMS.values()) <= set(VALUES)
    assert set(ALIASES.values()) <= set(VALUES)


def test_each_refused_option_has_its_reason() -> None:
    assert {name for name, word in TREATMENTS.items() if word == "refused"} == set(REASONS)


@pytest.mark.parametrize("name", [*VALUES, *ALIASES])
def test_each_option_is_known_by_its_full_name(name: str) -> None:
    needed = VALUES[ALIASES.get(name, name)]
    assert names_of(f"--{name}=1" if needed else f"--{name}") == [ALIASES.get(name, name)]


@pytest.mark.parametrize(
    ("word", "name"),
    [("--tasks=2", "ntasks-per-node"), ("--ta=2", "ntasks-per-node"), ("--ho", "hold"),
     ("--wait", "wait"), ("--get=3", "get-user-env"), ("--contig", "contiguous"),
     ("--ntasks-per-t=2", "ntasks-per-gpu"), ("--cluster=x", "clusters"),],
)  # fmt: skip
def test_an_unambiguous_beginning_names_its_option(word: str, name: str) -> None:
    assert names_of(word) == [name]


@pytest.mark.parametrize("word", ["--nt=2", "--no", "--exc=n1", "--mai=x", "--gpu=1", "--w=x"])
def test_an_ambiguous_beginning_names_the_candidates(word: str) -> None:
    with pytest.raises(ScriptError, match=r"may be --.* or --.*; write it in full"):
        names_of(word)


def test_short_options_are_bundled_as_getopt_does() -> None:
    options, rest = read_words(["-Hn4", "-koff", "-vvv", "-s", "run.sh"], COMMAND_LINE)
    assert [(option.name, option.value) for option in options] == [
        ("hold", ""), ("ntasks", "4"), ("no-kill", "off"), ("verbose", ""), ("verbose", ""),
        ("verbose", ""), ("oversubscribe", ""),
    ]  # fmt: skip
    assert rest == ["run.sh"]
