"""Cgroups of jobs of a team's user: joined before the first command, and closed to the job."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.builders_agent import until
from tests.builders_cgroups import CONTROLLERS, PATIENCE_S, GroupedSite, own_cgroups
from tests.builders_isolation import IS_ROOT, Site, a_site, an_isolation

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root may write this machine's cgroups")

STRANGER = """
tries() {
  if [ -e "$1" ] && (echo "$2" >"$1") 2>/dev/null; then echo "wrote $1"; fi
}
grep -c "$1" /proc/self/cgroup
for folder in $(find /sys/fs/cgroup -path "*/$1"); do
  for file in memory.limit_in_bytes memory.max pids.max cpu.cfs_quota_us cpu.max; do
    tries "$folder/$file" 900000
  done
  tries "$folder/cgroup.procs" 0
  tries "$folder/../../cgroup.procs" 0
  mkdir "$folder/own" 2>/dev/null && echo "made $folder/own"
done
echo tried
"""


@pytest.fixture(params=["sandbox", "users alone"])
def site(request: pytest.FixtureRequest, state: Path) -> Iterator[GroupedSite]:
    """A site whose jobs are of a team's user, in a sandbox or not."""
    isolation = an_isolation(state)
    if request.param == "users alone":
        isolation = an_isolation(state, program="")
    with own_cgroups() as groups, closing(GroupedSite(state, groups, isolation, 40)) as site:
        yield site


@pytest.fixture
def site_of_sandbox(state: Path) -> Iterator[Site]:
    yield from a_site(an_isolation(state))


@needs_root
def test_a_teams_job_cannot_change_or_leave_its_group(site: GroupedSite) -> None:
    run = site.start("/bin/sh", "-c", STRANGER, "sh", "lm-a1-1", memory_gb=0.2, cores=0.5)
    assert site.end_of(run).exit_code == 0, site.output(run)
    groups, *words = site.output(run).split()
    assert int(groups) >= len(CONTROLLERS)
    assert words == ["tried"]


@needs_root
def test_a_teams_job_is_in_its_group_at_once(site: GroupedSite) -> None:
    run = site.start("/bin/sh", "-c", "cat /proc/self/cgroup; echo read; sleep 60")
    until(lambda: "read" in site.output(run), within_s=PATIENCE_S)
    assert site.output(run).count(run.name) >= len(CONTROLLERS)
    users = {psutil.Process(pid).uids().real for pid in site.pids(run)}
    assert users == {an_isolation(site.state).user_of(1)}


@needs_root
def test_a_teams_job_above_its_memory_is_killed(site: GroupedSite) -> None:
    command = ("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=300M", "count=1")
    assert site.end_of(site.start(*command, memory_gb=0.1)).oom


def test_trees_of_cgroups_are_read_only_in_a_sandbox(site_of_sandbox: Site) -> None:
    run = site_of_sandbox.start(command=("/bin/grep", " /sys/fs/cgroup", "/proc/mounts"))
    options = [line.split()[3] for line in site_of_sandbox.says(run).splitlines()]
    assert options
    assert all(words.startswith("ro,") for words in options)
