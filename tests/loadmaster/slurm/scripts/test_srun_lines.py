"""Options of containers are found on srun lines, with the variables that a script itself sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.scripts.srun_lines import container_options

Found = tuple[str, str, bool]


def found(*lines: str, **variables: str) -> list[Found]:
    """Names and values of options, and whether these are known."""
    script = "\n".join(["#!/bin/bash", *lines])
    options = container_options(script, {"PWD": "/home/me", **variables})
    return [(option.name, option.value, option.is_known) for option in options]


@pytest.mark.parametrize(
    "lines",
    [
        ["srun --container-image=x:1 python"],
        ["srun --container-image x:1 python"],
        ["srun -l -N 1 --ntasks=1 \\", "  --container-image=x:1 \\", "  python"],
        ["IMAGE=x:1", "srun --container-image=$IMAGE python"],
        ["export IMAGE='x:1'", 'srun --container-image="${IMAGE}" python'],
        ["readonly TAG=1 # the tag", "IMAGE=x:${TAG}", "srun --container-image=$IMAGE python"],
        ["srun --container-image=${OTHER:-x:1} python"],
        ['ARGS="--container-image=x:1"', "srun $ARGS python"],
        ["ARGS=(", "  --container-image=x:1", "  # more", ")", 'srun "${ARGS[@]}" python'],
        ["ARGS=()", "ARGS+=(--container-image=x:1)", 'srun "${ARGS[@]}" python'],
        ["srun $UNKNOWN --container-image=x:1 python"],
        ["RESULT=$(srun --container-image=x:1 hostname)"],
        ["time /usr/bin/srun --container-image=x:1 a && echo done"],
        ['RUN="srun --container-image=x:1"', "$RUN python"],
        ["train() {", "  srun --container-image=x:1 python $1", "}", "train a"],
        ['srun --container-image=x:1 bash -c "', "  python a", '"'],
        ["RUN=(", "  srun -n1", '  "--container-image=x:1"', "  python", ")", '"${RUN[@]}"'],
        ["sbatch <<EOF", "srun --container-image=y a", "EOF", "srun --container-image=x:1 b"],
        ["A=$((1<<B))", "srun --container-image=x:1 b"],
        ["if true; then", "  srun --container-image=x:1 python", "fi"],
    ],
)
def test_the_image_of_a_srun_line_is_known(lines: list[str]) -> None:
    assert found(*lines) == [("container-image", "x:1", True)]


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["srun --container-image=$1 python"], "$1"),
        (["srun --container-image=$(cat image) python"], "$(cat"),
        (["for I in a b; do", "srun --container-image=$I python", "done"], "$I"),
        (["if true; then", "I=a", "fi", "srun --container-image=$I python"], "$I"),
        (["I=b", "[ $# = 1 ] && I=a", "srun --container-image=$I python"], "$I"),
        (["I=b", "if true; then I=a; fi", "srun --container-image=$I python"], "$I"),
        (["I=b", "if true; then export I=a; fi", "srun --container-image=$I python"], "$I"),
        (["I=b", "read -r I <file", "srun --container-image=$I python"], "$I"),
        (["I=b", "case x in", "a) I=a ;;", "esac", "srun --container-image $I python"], "$I"),
        (["I=b", "for I in a b; do", "srun --container-image=$I python", "done"], "$I"),
        (["case x in", "a) I=a ;;", "esac", "srun --container-image $I python"], "$I"),
    ],
)
def test_a_value_that_only_the_run_gives_is_not_known(lines: list[str], value: str) -> None:
    assert found(*lines) == [("container-image", value, False)]


@pytest.mark.parametrize(
    "line",
    ['eval "srun --container-image=x y"', "bash -c 'srun --container-image=x y'"],
)
def test_a_line_that_cannot_be_read_is_noted(line: str) -> None:
    assert found(line) == [("", line, True)]


def test_mounts_may_be_added_to_a_variable() -> None:
    lines = ["M=/a:/a", 'M="$M,$PWD:/work"', "M+=,$(pwd)/x:/x", "srun --container-mounts=$M a"]
    assert found(*lines) == [
        ("container-mounts", "/a:/a,/home/me:/work,/home/me/x:/x", True),
    ]


def test_comments_and_options_of_the_program_are_not_read() -> None:
    lines = ["# srun --container-image=x a", "srun a --container-image=x  # --container-image=y"]
    assert [name for name, _, _ in found(*lines)] == [""]


def test_variables_of_the_submission_are_known() -> None:
    assert found("srun --container-image=$I a", I="x") == [("container-image", "x", True)]


@given(st.text(alphabet="srun -=$(){}'\"\\\n#A+;[@]:/", max_size=200))
def test_any_text_is_read(text: str) -> None:
    container_options(f"{text}\nsrun --container-image=x a", {})


@pytest.mark.parametrize(
    "text",
    [
        "A=aaaaaaaaaa\n" + "A=$A$A$A$A\n" * 5000,
        "A=(\n" * 60_000,
        "if " * 80_000,
        "$A" * 100_000,
        "A=" + "a" * 2000 + "\n" + ("B=" + "$A" * 3999 + "\n") * 25,
        "srun " + "-l " * 80_000,
        "a \\\n" * 60_000,
    ],
)
def test_a_long_script_is_read_in_time(text: str) -> None:
    assert container_options(f"{text}\n# --container-", {}) == []
