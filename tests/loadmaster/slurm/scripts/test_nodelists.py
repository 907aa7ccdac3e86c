"""Lists of nodes, as a real `scontrol` writes them and writes them out."""

import pytest

from loadmaster.slurm.scripts.nodelists import NodeListError, compress, expand


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n1", "n2"], "n[1-2]"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["n2", "n1"], "n[2,1]"),
        (["n1", "n1x", "n2x"], "n1,n1x,n2x"),
        (["node08", "node09", "node10", "node12"], "node[08-10,12]"),
        (["volta", "turing"], "volta,turing"),
        (["n1", "gpu", "n2"], "n1,gpu,n2"),
        (["gpu", "gpu1", "gpu2"], "gpu,gpu[1-2]"),
        (["rack1-n1", "rack1-n2"], "rack1-n[1-2]"),
        (["n1", "n1"], "n[1,1]"),
    ],
)
def test_nodes_are_listed_as_slurm_lists_them_and_read_back(names: list[str], text: str) -> None:
    assert compress(names) == text
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3,5],gpu-[01-02]", "n1 n2 n3 n5 gpu-01 gpu-02"),
        ("n[1-2]x[3-4]", "n1x3 n1x4 n2x3 n2x4"),
        ("n[001-003]", "n001 n002 n003"),
        ("n[9-11]", "n9 n10 n11"),
        ("a,b,,c", "a b c"),
        ("", ""),
    ],
)
def test_lists_are_written_out_as_scontrol_does(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize("text", ["n[1", "n]1", "n[x]", "n[1-]", "n[]", "n[1-999999999]"])
def test_lists_that_are_none_are_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(NodeListError, match=r"write such as|stands for more than"):
        expand(text)
