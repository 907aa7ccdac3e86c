"""Real cgroups: each launch in a group of its own, which limits it and ends with it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.runtimes.base import QuotaError, RunId, Usage
from loadmaster.agent.runtimes.cgroup_files import fields_of
from loadmaster.agent.runtimes.cgroups import GroupLimits, Resource
from loadmaster.features import limits_of
from loadmaster.protocol import ReasonClass
from tests.builders_agent import python, until
from tests.builders_cgroups import (
    PATIENCE_S,
    GroupedSite,
    own_cgroups,
    skip_unless_version,
)
from tests.builders_processes import is_running

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

MEGABYTES = 400
ALLOCATES = f"held = bytearray({MEGABYTES} * 10**6); print('held', len(held))"
BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
"""
BURNS = "while True: pass"
DETACHED = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
DETACHES = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {DETACHED!r}], env={{}})
time.sleep(60)
"""
SLEEP = ("/bin/sleep", "60")


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GroupedSite]:
    """A site without isolation, of each version that holds the controllers on this machine."""
    skip_unless_version(request.param)
    with own_cgroups() as groups:
        site = GroupedSite(tmp_path / "state", groups, most_processes=40)
        with closing(site):
            yield site


def paths_of(site: GroupedSite, run: RunId) -> list[Path]:
    return [Path(entrance).parent for entrance in site.groups.entrances(run.name)]


def test_an_agent_with_cgroups_says_what_it_limits(site: GroupedSite) -> None:
    assert limits_of(("process", *site.runtime.features)) == ("memory", "processes", "cores")


def test_a_job_above_its_memory_is_killed(site: GroupedSite) -> None:
    run = site.start(*python(ALLOCATES), memory_gb=0.1)
    ended = site.end_of(run)
    assert (ended.oom, ended.exit_code, site.output(run)) == (True, -signal.SIGKILL, "")
    assert outcome_of(ended).reason_class is ReasonClass.OOM


def test_a_job_within_its_memory_is_not_killed(site: GroupedSite) -> None:
    run = site.start(*python(ALLOCATES), memory_gb=1.0)
    assert (site.end_of(run).exit_code, site.output(run)) == (0, f"held {MEGABYTES}000000\n")


def test_a_child_killed_for_memory_explains_the_jobs_failure(site: GroupedSite) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALLOCATES!r}]); exit(3)"
    ended = site.end_of(site.start(*python(code), memory_gb=0.1))
    assert (ended.oom, ended.exit_code) == (True, 3)
    assert outcome_of(ended).reason_class is ReasonClass.OOM


def test_files_in_memory_count_as_the_jobs_memory(site: GroupedSite) -> None:
    code = f"""
import os
held = os.memfd_create('held')
for _ in range({MEGABYTES}): os.write(held, bytes(10**6))
print('held')
"""
    ended = site.end_of(site.start(*python(code), memory_gb=0.1))
    assert ended.oom


def test_a_fork_bomb_stays_within_its_processes_and_ends(site: GroupedSite) -> None:
    run = site.start(*python(BOMB))
    pids = next(path for path in paths_of(site, run) if (path / "pids.max").exists())
    until(lambda: fields_of(pids / "pids.events").get("max", 0) > 10, within_s=PATIENCE_S)
    assert 30 < len(site.pids(run)) <= 40
    site.cancel(run)
    assert not any(path.exists() for path in paths_of(site, run))


def test_a_job_is_throttled_at_its_cores(site: GroupedSite) -> None:
    run = site.start(*python(BURNS), cores=0.2)
    assert site.groups.cores(run.name) == 0.2
    until(lambda: throttled_s(site, run) > 0.3, within_s=PATIENCE_S)


def test_a_quota_replaces_the_cores_that_a_job_asked_for(site: GroupedSite) -> None:
    run = site.start(*SLEEP, cores=2.0, cpu_quota=0.5)
    assert site.groups.cores(run.name) == 0.5


def test_a_job_that_asked_for_nothing_is_not_limited(site: GroupedSite) -> None:
    run = site.start(*SLEEP)
    assert site.groups.cores(run.name) is None


def throttled_s(site: GroupedSite, run: RunId) -> float:
    use = site.groups.use(run.name)
    return use.throttled_s if use else 0.0


def test_a_detached_process_is_in_the_group_without_the_guard(site: GroupedSite) -> None:
    run = site.start(*python(DETACHES))
    until(lambda: site.output(run), within_s=PATIENCE_S)
    job = site.runtime.folder(run) / "job.json"
    until(job.exists)
    assert int(site.output(run)) in site.pids(run)
    assert len(site.pids(run)) == 2


def test_nothing_of_a_job_outlives_its_killed_guard(site: GroupedSite) -> None:
    run = site.start(*python(DETACHES))
    until(lambda: site.output(run), within_s=PATIENCE_S)
    hidden = psutil.Process(int(site.output(run)))
    parents = psutil.Process(hidden.ppid()).parents()
    parents[0].kill()
    site.end_of(run)
    until(lambda: not is_running(hidden))
    until(lambda: site.runtime.poll(run) and not any(map(Path.exists, paths_of(site, run))))


def test_the_group_ends_with_the_launch(site: GroupedSite) -> None:
    run = site.start(*python("print('done')"))
    paths = paths_of(site, run)
    assert all(path.is_dir() for path in paths)
    site.end_of(run)
    assert not any(path.exists() for path in paths)


def test_the_next_agent_removes_groups_of_ended_runs_alone(
    site: GroupedSite,
) -> None:
    live = site.start(*SLEEP, name="live")
    site.groups.make("lm-lost-1", GroupLimits(processes=5))
    until(lambda: site.pids(live), within_s=PATIENCE_S)
    with closing(site.again()):
        assert site.groups.names() == [live.name]
    assert site.pids(live)


def test_a_left_group_with_processes_is_emptied_and_removed(site: GroupedSite) -> None:
    site.groups.make("lm-lost-1", GroupLimits())
    (entrance, *_) = site.groups.entrances("lm-lost-1")
    with subprocess.Popen(SLEEP) as sleeper:
        Path(entrance).write_text(str(sleeper.pid))
        site.groups.remove("lm-lost-1")
        assert sleeper.wait(PATIENCE_S) == -signal.SIGKILL
    site.groups.remove("lm-another-1")
    assert site.groups.names() == []


def test_a_leaving_agent_without_launches_leaves_no_group(site: GroupedSite) -> None:
    base = Path(site.groups.entrances("lm-a-1")[0]).parents[1]
    assert base.is_dir()
    site.runtime.close()
    assert not base.exists()


def test_an_own_group_that_somebody_has_removed_is_made_anew(site: GroupedSite) -> None:
    for entrance in site.groups.entrances("lm-a-1"):
        Path(entrance).parents[1].rmdir()
    run = site.start(*SLEEP, cores=1.5)
    assert site.runtime.quota(run) == 1.5


def test_only_the_wanted_resources_are_limited(tmp_path: Path) -> None:
    with own_cgroups(Resource.PROCESSES) as groups:
        site = GroupedSite(tmp_path / "state", groups)
        with closing(site):
            run = site.start(*SLEEP, memory_gb=0.1, cores=0.1)
            assert site.groups.limits == (Resource.PROCESSES,)
            assert not site.runtime.limits_memory(run)
            assert site.groups.cores(run.name) is None


def test_a_quota_changes_and_is_read_back_during_the_run(site: GroupedSite) -> None:
    run = site.start(*python(BURNS), cores=4.0)
    assert site.runtime.quota(run) == 4.0
    before_s = throttled_s(site, run)
    site.runtime.set_quota(run, 0.1)
    assert site.runtime.quota(run) == 0.1
    until(lambda: throttled_s(site, run) > before_s + 0.3, within_s=PATIENCE_S)


def test_an_unlimited_job_gets_a_quota_during_the_run(site: GroupedSite) -> None:
    run = site.start(*SLEEP)
    assert site.runtime.quota(run) is None
    site.runtime.set_quota(run, 1.5)
    assert site.runtime.quota(run) == 1.5


def test_the_next_agent_reads_the_quota_in_force(site: GroupedSite) -> None:
    run = site.start(*SLEEP, cores=2.0)
    site.runtime.set_quota(run, 0.5)
    with closing(site.again()) as again:
        assert again.quota(run) == 0.5


@pytest.mark.parametrize("cores", [0.0, -1.0, float("nan"), float("inf")])
def test_a_quota_of_no_cores_is_refused(site: GroupedSite, cores: float) -> None:
    run = site.start(*SLEEP, cores=1.0)
    with pytest.raises(QuotaError, match="cpu_quota: name a number of cores above 0"):
        site.runtime.set_quota(run, cores)
    assert site.runtime.quota(run) == 1.0


def test_a_launch_that_is_over_gets_no_quota(site: GroupedSite) -> None:
    run = site.start(*python("print('done')"), cores=1.0)
    site.end_of(run)
    with pytest.raises(QuotaError, match=f"{run.name} has no cgroup: it does not run"):
        site.runtime.set_quota(run, 0.5)


def test_use_counts_ended_children_and_the_time_that_is_withheld(site: GroupedSite) -> None:
    code = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'pass'])"
    run = site.start(*python(code), cores=0.3)
    site.runtime.usage(run)
    until(lambda: use_of(site, run).throttled_cores > 0.05, within_s=PATIENCE_S)
    until(lambda: 0.0 < use_of(site, run).memory_gb < 1.0, within_s=PATIENCE_S)
    until(lambda: use_of(site, run).cores > 0.1, within_s=PATIENCE_S)


def use_of(site: GroupedSite, run: RunId) -> Usage:
    """Return the use of a run since the last call."""
    return site.runtime.usage(run) or Usage(0.0, 0.0)
