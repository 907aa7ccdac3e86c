"""Command lines of sbatch, and the variables that stand for options."""

import pytest

from loadmaster.slurm.options.input_variables import INPUT_VARIABLES
from loadmaster.slurm.options.sbatch_table import VALUES
from loadmaster.slurm.scripts.submission import read_sbatch


def options(words: list[str], **variables: str) -> dict[str, str]:
    """Options by name of a command line, where these variables are set."""
    return {option.name: option.value for option in read_sbatch(words, variables).given}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SBATCH_TIMELIMIT": "5"}, {"time": "5"}),
        ({"SBATCH_ARRAY_INX": "0-3"}, {"array": "0-3"}),
        ({"SBATCH_MEM_PER_NODE": "4G"}, {"mem": "4G"}),
        ({"SBATCH_REQUEUE": "1"}, {"requeue": ""}),
        ({"SBATCH_GPUS": ""}, {}),
        ({"SLURM_HINT": "a", "SBATCH_HINT": "b"}, {"hint": "b"}),
        ({"SLURM_NTASKS": "4"}, {}),
    ],
)
def test_a_variable_stands_for_its_option(
    variables: dict[str, str], expected: dict[str, str]
) -> None:
    assert options(["run.sh"], **variables) == expected


def test_the_command_line_holds_over_variables() -> None:
    given = options(["-t", "9", "--no-requeue", "run.sh"], SBATCH_TIMELIMIT="5", SBATCH_REQUEUE="1")
    assert given == {"time": "9", "no-requeue": ""}


def test_words_with_variables_are_sent_before_those_of_the_command_line() -> None:
    words = read_sbatch(["-n", "4", "run.sh", "a"], {"SBATCH_TIMELIMIT": "5"})
    assert (words.options, words.arguments) == (("--time=5", "-n", "4"), ("a",))


def test_each_variable_names_an_option_of_sbatch() -> None:
    assert set(INPUT_VARIABLES.values()) <= VALUES.keys()
