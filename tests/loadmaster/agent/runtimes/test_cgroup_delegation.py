"""A real tree of version 2: groups of root, and of a user to whom a subtree is delegated.

The tree may lack the controllers of memory, processes and cores, which version 1 can hold; any
controller shows whether groups can be made.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from loadmaster.agent.runtimes.cgroups import (
    PREFIX,
    PROC,
    NoCgroupsError,
    Tree,
    base_of,
    mounted_trees,
)
from tests.builders_cgroups import remove_group

pytestmark = pytest.mark.root

USER = 12345
NAME = f"{PREFIX}test"


@pytest.fixture
def tree() -> Tree:
    """The tree of version 2 of this machine, with a controller."""
    for tree in mounted_trees(PROC):
        if tree.version.number == 2 and tree.controllers:
            return tree
    pytest.skip("no tree of cgroups version 2 with a controller is mounted on this machine")


@pytest.fixture
def controller(tree: Tree) -> Iterator[str]:
    """A controller of the tree, which the root hands down during the test."""
    controller = min(tree.controllers)
    control = tree.root / "cgroup.subtree_control"
    before = control.read_text().split()
    control.write_text(f"+{controller}")
    yield controller
    if controller not in before:
        control.write_text(f"-{controller}")


@pytest.fixture
def unit(tree: Tree, controller: str) -> Iterator[Path]:
    """A group as systemd delegates it to a user, with a subgroup `agent`."""
    unit = tree.root / f"test-{uuid4().hex}.service"
    unit.mkdir()
    (unit / "agent").mkdir()
    for group in (unit, unit / "agent"):
        for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
            os.chown(path, USER, USER)
    yield unit
    remove_group(unit)


def as_user_in(group: Path, call: Callable[[], object]) -> str:
    """Return the words of a call by another user in a group: its result or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        words = "it did not end"
        try:
            (group / "cgroup.procs").write_text("0")
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            words = str(call())
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                os.write(writing, words.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


def folder_for(controller: str) -> Path:
    """Return the folder of the groups that this process can make for a controller."""
    return base_of(mounted_trees(PROC), controller, NAME).folder


def test_root_makes_its_groups_at_the_root_of_the_tree(tree: Tree, controller: str) -> None:
    try:
        base = folder_for(controller)
        assert base == tree.root / NAME
        assert controller in (base / "cgroup.subtree_control").read_text().split()
    finally:
        remove_group(tree.root / NAME)


def test_a_user_makes_groups_in_the_delegated_subtree(unit: Path, controller: str) -> None:
    assert as_user_in(unit / "agent", lambda: folder_for(controller)) == str(unit / NAME)
    assert (unit / NAME).stat().st_uid == USER


def test_an_agent_in_the_delegated_group_itself_learns_the_remedy(
    unit: Path, controller: str
) -> None:
    words = as_user_in(unit, lambda: folder_for(controller))
    assert words.startswith(NoCgroupsError.__name__)
    assert f"processes run in {unit} itself: give the agent a subgroup" in words


def test_a_user_without_a_delegated_subtree_makes_no_groups(tree: Tree, controller: str) -> None:
    words = as_user_in(tree.root, lambda: folder_for(controller))
    assert words == f"NoCgroupsError: the agent may write no group of {tree.root}"
