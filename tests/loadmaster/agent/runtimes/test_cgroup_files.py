"""Files of cgroups in both versions, on recorded trees: where an agent's groups lie, and forms."""

import os
from pathlib import Path

import pytest

from loadmaster.agent.runtimes import cgroups
from loadmaster.agent.runtimes.cgroup_files import Version, Version1, Version2, fields_of, pids_in
from loadmaster.agent.runtimes.cgroups import (
    Base,
    Cgroups,
    GroupLimits,
    GroupUse,
    NoCgroupsError,
    Resource,
    mounted_trees,
    topmost_writable,
    working_cgroups,
)

UNIT = "/system.slice/loadmaster-agent.service"

UNIFIED = (
    f"0::{UNIT}/agent\n",
    "30 24 0:26 / {0} rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
)
SEPARATE = (
    f"5:pids:{UNIT}\n4:memory:{UNIT}\n2:cpu,cpuacct:{UNIT}\n1:name=systemd:{UNIT}\n0::{UNIT}\n",
    "41 40 0:30 / {0}/unified rw shared:10 - cgroup2 cgroup2 rw\n"
    "42 40 0:31 / {0}/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd\n"
    "43 40 0:32 / {0}/memory rw shared:12 - cgroup cgroup rw,memory\n"
    "44 40 0:33 / {0}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "22 1 8:1 / /proc rw - proc proc rw\n",
)
CONTAINER = (
    "4:memory:/docker/1f\n0::/docker/1f\n",
    "43 40 0:32 /docker/1f {0}/memory ro - cgroup cgroup rw,memory\n",
)
"""Recorded /proc/self/cgroup and /proc/self/mountinfo: version 2, version 1 without a mount for
pids, and a container that sees its own part of version 1."""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def record(proc: Path, recorded: tuple[str, str], version2: str = "") -> Path:
    """Write a recorded process; return the folder below which its trees are mounted."""
    groups, mounts = recorded
    root = proc.parent / "fs"
    unified = root / "unified" if "unified" in mounts else root
    unified.mkdir(parents=True)
    (unified / "cgroup.controllers").write_text(version2)
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts.format(root))
    return root


def controllers_of(proc: Path) -> dict[str, tuple[int, Path]]:
    """Return version and own group by controller."""
    found = {}
    for tree in mounted_trees(proc):
        for controller in tree.controllers:
            found[controller] = (tree.version.number, tree.own)
    return found


def test_version_2_holds_all_controllers_in_one_tree(proc: Path) -> None:
    root = record(proc, UNIFIED, "cpuset cpu io memory pids\n")
    own = root / UNIT[1:] / "agent"
    assert {name: controllers_of(proc)[name] for name in ("cpu", "memory", "pids")} == {
        "cpu": (2, own),
        "memory": (2, own),
        "pids": (2, own),
    }


def test_version_1_holds_controllers_in_trees_of_their_own(proc: Path) -> None:
    root = record(proc, SEPARATE, "pids\n")
    found = controllers_of(proc)
    assert found["memory"] == (1, root / "memory" / UNIT[1:])
    assert found["cpu"] == found["cpuacct"] == (1, root / "cpu,cpuacct" / UNIT[1:])
    assert found["pids"] == (2, root / "unified" / UNIT[1:]), "it is not mounted in version 1"


def test_a_container_sees_its_own_part_of_a_tree(proc: Path) -> None:
    root = record(proc, CONTAINER)
    assert controllers_of(proc) == {"memory": (1, root / "memory")}


def test_without_mounted_trees_there_are_none(proc: Path) -> None:
    assert mounted_trees(proc) == []


@pytest.mark.parametrize(
    ("writable", "topmost"),
    [
        (["", "system.slice", UNIT[1:]], ""),
        ([UNIT[1:], f"{UNIT[1:]}/agent"], UNIT[1:]),
        ([], None),
    ],
    ids=["root", "delegated unit", "neither"],
)
def test_groups_lie_below_the_agents_topmost_writable_group(
    proc: Path, monkeypatch: pytest.MonkeyPatch, writable: list[str], topmost: str | None
) -> None:
    root = record(proc, UNIFIED, "memory\n")
    allowed = {root / name for name in writable}
    monkeypatch.setattr(
        os, "access", lambda path, mode: path in allowed or Path(path).parent in allowed
    )
    (tree,) = mounted_trees(proc)
    assert topmost_writable(tree) == (None if topmost is None else root / topmost)


def test_a_machine_without_cgroups_says_why(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "PROC", proc)
    with pytest.raises(NoCgroupsError, match="memory: the controller memory is not mounted; "):
        working_cgroups("m1", tuple(Resource))


def test_a_read_only_tree_is_named(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = record(proc, UNIFIED, "memory\n")
    monkeypatch.setattr(cgroups, "PROC", proc)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(NoCgroupsError, match=f"memory: the agent may write no group of {root}"):
        working_cgroups("m1", [Resource.MEMORY])


def a_group(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


V1_FILES = {
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.memsw.limit_in_bytes": "9223372036854771712\n",
    "memory.usage_in_bytes": "5000000\n",
    "memory.stat": "cache 3000000\nrss 2000000\ninactive_file 5\ntotal_inactive_file 1000000\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "pids.max": "max\n",
    "cpu.cfs_quota_us": "-1\n",
    "cpu.cfs_period_us": "250000\n",
    "cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
    "cpuacct.usage": "2500000000\n",
    "cgroup.procs": "17\n23\n",
}
V2_FILES = {
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.current": "5000000\n",
    "memory.stat": "anon 2000000\nfile 3000000\ninactive_file 1000000\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 3\noom_kill 3\noom_group_kill 0\n",
    "pids.max": "max\n",
    "cpu.max": "max 250000\n",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\nnr_throttled 4\nthrottled_usec 1500000\n",
    "cgroup.procs": "17\n23\n",
}
LIMITED = {
    1: {
        "memory.limit_in_bytes": "150000000",
        "memory.memsw.limit_in_bytes": "150000000",
        "pids.max": "40",
        "cpu.cfs_quota_us": "50000",
        "cpu.cfs_period_us": "100000",
    },
    2: {
        "memory.max": "150000000",
        "memory.swap.max": "0",
        "pids.max": "40",
        "cpu.max": "50000 100000",
    },
}


@pytest.fixture(params=[(Version1(), V1_FILES), (Version2(), V2_FILES)], ids=["v1", "v2"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Version, Path, Cgroups]:
    """A version, a recorded group lm-a-1 of it, and the agent's groups with that one."""
    version, files = request.param
    group = a_group(tmp_path / "base/lm-a-1", files)
    names = [*version.limit_files]
    return version, group, Cgroups({name: Base(version, group.parent) for name in names})


def test_limits_are_written_as_each_version_takes_them(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    version, group, groups = recorded
    groups.make("lm-a-1", GroupLimits(150_000_000, 40, 0.5))
    written = {name: (group / name).read_text() for name in LIMITED[version.number]}
    assert written == LIMITED[version.number]


def test_a_kernel_without_swap_accounts_gets_no_swap_limit(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, group, groups = recorded
    for name in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
        (group / name).unlink(missing_ok=True)
    groups.make("lm-a-1", GroupLimits(150_000_000))
    assert not (group / "memory.memsw.limit_in_bytes").exists()
    assert not (group / "memory.swap.max").exists()


def test_a_limit_of_cores_is_read_back_and_taken_away(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, _, groups = recorded
    assert groups.cores("lm-a-1") is None
    groups.set_cores("lm-a-1", 1.75)
    assert groups.cores("lm-a-1") == 1.75
    groups.set_cores("lm-a-1", None)
    assert groups.cores("lm-a-1") is None


def test_a_quota_below_the_kernels_least_is_raised_to_it(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, _, groups = recorded
    groups.set_cores("lm-a-1", 0.001)
    assert groups.cores("lm-a-1") == 0.01


def test_use_leaves_out_file_cache_that_can_be_dropped(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, _, groups = recorded
    assert groups.use("lm-a-1") == GroupUse(cpu_s=2.5, throttled_s=1.5, memory=4_000_000)


def test_a_removed_group_has_no_use_and_no_limit(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, _, groups = recorded
    assert (groups.use("lm-b-1"), groups.cores("lm-b-1")) == (None, None)
    assert not groups.has("lm-b-1", Resource.MEMORY)


def test_kills_for_memory_are_counted_by_the_group(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, _, groups = recorded
    (counter,) = groups.oom_counters("lm-a-1")
    assert fields_of(Path(counter))["oom_kill"] == 3


def test_processes_of_a_group_are_those_of_its_file(
    recorded: tuple[Version, Path, Cgroups],
) -> None:
    _, group, groups = recorded
    assert pids_in(group) == [17, 23]
    assert groups.entrances("lm-a-1") == [str(group / "cgroup.procs")]
    assert pids_in(group / "gone") == []


def test_a_process_of_another_namespace_is_not_listed(tmp_path: Path) -> None:
    group = a_group(tmp_path / "lm-a-1", {"cgroup.procs": "0\n17\n0\n"})
    assert pids_in(group) == [17], "a signal to 0 would reach the agent's own process group"


def test_each_launch_has_its_controllers_handed_down_anew(tmp_path: Path) -> None:
    version = Version2()
    a_group(tmp_path / "base/lm-a-1", V2_FILES)
    groups = Cgroups({name: Base(version, tmp_path / "base") for name in version.limit_files})
    handed_down = tmp_path / "base/cgroup.subtree_control"
    os.mkfifo(handed_down)
    reader = os.open(handed_down, os.O_RDONLY | os.O_NONBLOCK)
    groups.make("lm-a-1", GroupLimits(150_000_000, 40, 0.5))
    assert os.read(reader, 100) == b"+memory+pids+cpu"
    os.close(reader)


def test_controllers_of_both_versions_limit_one_launch_together(tmp_path: Path) -> None:
    memory = a_group(tmp_path / "v1/lm-a-1", V1_FILES)
    pids = a_group(tmp_path / "v2/lm-a-1", V2_FILES)
    bases = {
        "memory": Base(Version1(), memory.parent),
        "pids": Base(Version2(), pids.parent),
    }
    groups = Cgroups(bases)
    groups.make("lm-a-1", GroupLimits(150_000_000, 40, 0.5))
    assert groups.limits == (Resource.MEMORY, Resource.PROCESSES)
    assert (memory / "memory.limit_in_bytes").read_text() == "150000000"
    assert (pids / "pids.max").read_text() == "40"
    assert (pids / "cpu.max").read_text() == "max 250000\n", "its controller is not ours"
    assert len(groups.entrances("lm-a-1")) == 2
