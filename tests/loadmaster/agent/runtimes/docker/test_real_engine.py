"""Containers by a real Engine: launched, limited, stopped, told of, adopted."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.runtimes.base import (
    Launch,
    RunId,
    RunState,
    StopBy,
    StopOrder,
)
from loadmaster.agent.runtimes.docker import DockerOptions
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.protocol import ReasonClass
from tests.builders_agent import until
from tests.builders_docker import (
    Site,
    a_docker_spec,
    an_api,
    an_image,
    boot_s,
    busybox,
    python3,
    remove_image,
    sh,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

STUBBORN = sh("trap '' TERM; echo up; while :; do sleep 1; done")
SLEEPER = sh("echo up; exec sleep 60")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.clear()


def test_a_job_runs_in_its_image_and_its_output_and_exit_code_are_kept(site: Site) -> None:
    run = site.launch(a_docker_spec(command=sh("cat /etc/debian_version; echo err >&2; exit 3")))
    ended = site.end(run)
    assert (ended.started, ended.exit_code, ended.stopped_by, ended.oom) == (True, 3, None, False)
    assert site.output(run).startswith("12")
    assert site.output(run, "stderr") == "err\n"


def test_a_job_has_neither_rights_nor_capabilities_nor_the_hosts_network(site: Site) -> None:
    run = site.launch(
        a_docker_spec(
            command=sh(
                "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /sys/class/net; ls /proc"
                " | wc -w"
            )
        )
    )
    site.end(run)
    uid = os.getuid() or 1000
    lines = site.output(run).split()
    assert lines[:6] == [str(uid), "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "lo"]
    config = site.inspect(run)["HostConfig"]
    assert (config["Privileged"], config["PidMode"], config["IpcMode"], config["NetworkMode"]) == (
        False,
        "",
        "private",
        "none",
    )


def test_limits_are_the_jobs_own(site: Site) -> None:
    run = site.launch(a_docker_spec(memory_gb=0.3, cores=1.5))
    site.end(run)
    config = site.inspect(run)["HostConfig"]
    assert config["Memory"] == config["MemorySwap"] == 350_000_000
    assert (config["CpuPeriod"], config["CpuQuota"], config["PidsLimit"]) == (
        100_000,
        150_000,
        4096,
    )


def test_a_quota_changes_and_is_read_back_during_the_run(site: Site) -> None:
    run = site.launch(a_docker_spec(command=SLEEPER, cores=1.5))
    until(lambda: site.runtime.quota(run) == 1.5)
    site.runtime.set_quota(run, 0.25)
    until(lambda: site.runtime.quota(run) == 0.25)
    config = site.inspect(run)["HostConfig"]
    assert (config["CpuPeriod"], config["CpuQuota"]) == (100_000, 25_000)


def test_the_next_agent_reads_the_quota_in_force(site: Site) -> None:
    run = site.launch(a_docker_spec(command=SLEEPER, cores=1.5))
    until(lambda: site.runtime.quota(run) == 1.5)
    site.runtime.set_quota(run, 0.5)
    until(lambda: site.runtime.quota(run) == 0.5)
    another = site.another()
    until(lambda: another.quota(run) == 0.5)
    another.close()


def test_a_job_at_its_quota_shows_withheld_time(site: Site) -> None:
    run = site.launch(a_docker_spec(command=sh("while :; do :; done"), cores=0.2))
    until(lambda: getattr(site.runtime.usage(run), "throttled_cores", 0.0) > 0.1, within_s=30)


def test_secrets_and_the_environment_are_in_the_job_and_not_in_what_the_engine_tells(
    site: Site,
) -> None:
    spec = a_docker_spec(
        command=sh("echo $KEY $HOME $LOADMASTER_RUN_DIR; getent passwd root >/dev/null"),
        secrets={"KEY": "hunter'2\n$x"},
    )
    run = site.launch(spec)
    assert site.end(run).exit_code == 0
    assert site.output(run).replace("\n", " ") == "hunter'2 $x /loadmaster/work /loadmaster/run "
    assert "hunter" not in json.dumps(site.inspect(run))
    assert not (site.runtime.folder(run) / "guard" / "launch.json").exists()


def test_a_job_can_write_its_home_its_checkpoints_and_its_progress_and_not_its_lease(
    site: Site,
) -> None:
    script = (
        "cd; touch x && touch $LOADMASTER_CHECKPOINT_DIR/y && echo '{}' >>"
        " $LOADMASTER_RUN_DIR/progress.jsonl && echo can;for f in lease.json term.json stop.json"
        " new; do (echo > $LOADMASTER_RUN_DIR/$f) 2>/dev/null && echo $f; done; true"
    )
    run = site.launch(a_docker_spec(command=sh(script)))
    site.end(run)
    assert site.output(run) == "can\n"
    assert site.runtime.read(run, "progress", 0, 100) == b"{}\n"
    assert (site.state_dir / "checkpoints" / "job-1" / "y").exists()


def test_the_images_working_folder_and_variables_hold(site: Site) -> None:
    name = an_image(
        {"bin/busybox": busybox(), "bin/sh": "busybox", "app": None},
        changes=("WORKDIR /app", "ENV COLOUR=green"),
    )
    try:
        run = site.launch(
            a_docker_spec(image=name, command=("/bin/busybox", "sh", "-c", "pwd; echo $COLOUR"))
        )
        site.end(run)
        assert site.output(run) == "/app\ngreen\n"
    finally:
        remove_image(name)


def test_what_is_mounted_is_what_the_operator_allows(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set").write_text("digits")
    site = Site(tmp_path / "state", mounts=(AllowedMount(tmp_path / "data"),))
    try:
        spec = a_docker_spec(
            mounts=(f"{tmp_path}/data:/data:ro",),
            command=sh("cat /data/set; touch /data/x 2>/dev/null || echo no"),
        )
        run = site.launch(spec)
        site.end(run)
        assert site.output(run) == "digitsno\n"
        for wish, words in (
            (f"{tmp_path}/data:/data", "read-only"),
            ("/etc:/host:ro", "ask its operator"),
            (f"{tmp_path}/data/../..:/x:ro", "ask"),
        ):
            refused = site.runtime.objection(
                Launch(RunId("a", 1), a_docker_spec(mounts=(wish,)), {}, 1.0, "boot")
            )
            assert refused is not None
            assert refused[0] is ReasonClass.USER
            assert "mounts[0]" in refused[1]
            assert words in refused[1]
    finally:
        site.clear()


def test_a_mounted_folder_that_a_job_swaps_for_a_link_before_the_start_is_not_followed(
    tmp_path: Path,
) -> None:
    (tmp_path / "rw" / "data").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hunter2")
    site = Site(tmp_path / "state", mounts=(AllowedMount(tmp_path / "rw", writable=True),))
    try:
        run = site.prepare(
            a_docker_spec(mounts=(f"{tmp_path}/rw/data:/data",), command=sh("cat /data/key"))
        )
        assert site.runtime.poll(run).state is RunState.PREPARED
        (tmp_path / "rw" / "data").rmdir()
        (tmp_path / "rw" / "data").symlink_to(tmp_path / "secret")
        site.runtime.start(run, boot_s() + 60)
        ended = site.end(run)
        assert (ended.started, ended.blame) == (False, ReasonClass.USER)
        assert site.output(run) == ""
    finally:
        site.clear()


def test_an_image_is_pinned_and_later_launches_use_the_same_whatever_its_name_means(
    site: Site,
) -> None:
    first = an_image({"bin/busybox": busybox(), "bin/sh": "busybox", "version": b"one"})
    second = an_image({"bin/busybox": busybox(), "bin/sh": "busybox", "version": b"two"})
    command = ("/bin/busybox", "cat", "/version")
    try:
        digest = site.runtime.poll(
            site.prepare(a_docker_spec(image=first, command=command))
        ).image_digest
        with an_api() as api:
            assert digest == api.images(first, quiet=True)[0]
            api.tag(second, "loadmaster-tiny", first.partition(":")[2], force=True)
            api.tag(digest, "loadmaster-tiny", "kept")
        run = site.launch(a_docker_spec(image=first, image_digest=digest, command=command))
        site.end(run)
        assert site.output(run) == "one"
    finally:
        for name in (first, second, "loadmaster-tiny:kept"):
            remove_image(name)


def test_an_image_that_cannot_be_had_is_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.PULL_PAUSE_S", 0.0)
    site = Site(tmp_path, pull="missing")
    try:
        ended = site.end(site.prepare(a_docker_spec(image="registry.invalid/no/such:1")))
        outcome = outcome_of(ended)
        assert (ended.started, outcome.reason_class) == (False, ReasonClass.IMAGE)
        assert "registry.invalid/no/such:1 cannot be pulled" in outcome.reason
    finally:
        site.clear()


def test_a_pinned_image_that_is_not_here_is_not_replaced_by_another_of_its_name(site: Site) -> None:
    ended = site.end(site.prepare(a_docker_spec(image_digest="sha256:" + "0" * 64)))
    assert outcome_of(ended).reason_class is ReasonClass.IMAGE
    assert "0000" in ended.error


def test_a_command_that_is_not_in_the_image_is_the_users_fault(site: Site) -> None:
    outcome = outcome_of(site.end(site.launch(a_docker_spec(command=("no-such-program",)))))
    assert outcome.reason_class is ReasonClass.USER
    assert "no-such-program" in outcome.reason


def test_more_memory_than_asked_for_ends_in_oom(site: Site) -> None:
    run = site.launch(
        a_docker_spec(memory_gb=0.1, command=python3("x = b'x' * 400_000_000; print(len(x))"))
    )
    ended = site.end(run)
    assert ended.oom
    assert outcome_of(ended).reason_class is ReasonClass.OOM


def test_a_second_start_of_a_launch_does_nothing(site: Site) -> None:
    run = site.launch(a_docker_spec(command=sh("echo once")))
    site.runtime.start(run, boot_s() + 60)
    site.end(run)
    site.runtime.start(run, boot_s() + 60)
    another = site.another()
    another.start(run, boot_s() + 60)
    another.close()
    assert site.output(run) == "once\n"


def test_an_abandoned_launch_can_never_be_started(site: Site) -> None:
    run = site.prepare(a_docker_spec(command=sh("echo never")))
    ended = site.runtime.abandon(run).exit
    assert ended is not None
    assert ended.started is False
    with an_api() as api:
        api.start(run.name)
        api.wait(run.name)
    assert site.output(run) == ""
    assert site.runtime.poll(run).exit == ended


def test_a_container_that_was_made_although_the_call_failed_is_adopted(site: Site) -> None:
    run = site.prepare(a_docker_spec(command=sh("echo adopted")))
    made = site.inspect(run)["Id"]
    site.runtime.close()
    site.runtime = site.another()
    until(lambda: site.runtime.poll(run).state is RunState.PREPARED)
    assert site.inspect(run)["Id"] == made
    site.runtime.start(run, boot_s() + 60)
    assert site.end(run).exit_code == 0


def test_a_running_container_is_found_by_a_restarted_agent_and_settled_by_it(site: Site) -> None:
    run = site.launch(a_docker_spec(command=SLEEPER))
    site.says(run, "up")
    site.runtime.close()
    site.runtime = site.another()
    assert site.runtime.list() == (run,)
    assert site.runtime.poll(run).state is RunState.RUNNING
    assert site.runtime.abandon(run).state is RunState.RUNNING
    site.runtime.stop(run, StopOrder(StopBy.CANCEL, 5.0))
    assert site.end(run).stopped_by is StopBy.CANCEL
    site.runtime.remove(run)
    until(lambda: not site.runtime.folder(run).exists())
    assert site.runtime.list() == ()


def test_a_container_that_somebody_removes_is_the_nodes_fault(site: Site) -> None:
    run = site.launch(a_docker_spec(command=SLEEPER))
    site.says(run, "up")
    with an_api() as api:
        api.remove_container(run.name, force=True)
    assert outcome_of(site.end(run)).reason_class is ReasonClass.NODE


def test_links_that_a_job_leaves_lead_nowhere(site: Site) -> None:
    run = site.launch(
        a_docker_spec(
            command=sh(
                "cd /loadmaster/guard; echo mine >&2; until rm stderr.log 2>/dev/null; do :; done;"
                " ln -s /etc/shadow stderr.log; ln -s /etc/shadow exit.tmp2"
            )
        )
    )
    site.end(run)
    assert site.runtime.read(run, "stderr", 0, 100) == b""
    assert site.runtime.size(run, "stderr") == 0


def test_what_a_job_uses_is_counted(site: Site) -> None:
    run = site.launch(
        a_docker_spec(
            command=python3("x = b'x' * 60_000_000\nprint('up', flush=True)\nwhile True: pass")
        )
    )
    site.says(run, "up")
    until(
        lambda: (usage := site.runtime.usage(run)) is not None and usage.memory_gb > 0.05,
        within_s=30,
    )
    until(
        lambda: (usage := site.runtime.usage(run)) is not None and usage.cores > 0.05, within_s=30
    )


def test_options_of_an_operator_hold(tmp_path: Path) -> None:
    site = Site(tmp_path, user="1234:4321", read_only=True, pids=100)
    try:
        run = site.launch(
            a_docker_spec(
                command=sh("id -u; id -g; touch /x 2>/dev/null || touch /tmp/x && echo tmp")
            )
        )
        site.end(run)
        assert site.output(run) == "1234\n4321\ntmp\n"
        assert site.inspect(run)["HostConfig"]["PidsLimit"] == 100
    finally:
        site.clear()


def test_an_images_own_user_is_used_where_the_operator_says_so(tmp_path: Path) -> None:
    name = an_image(
        {
            "bin/busybox": busybox(),
            "bin/sh": "busybox",
            "etc/passwd": b"root:x:0:0::/:/bin/sh\nann:x:1500:1600::/:/bin/sh\n",
        },
        changes=("USER ann",),
    )
    site = Site(tmp_path, user="image")
    try:
        run = site.launch(a_docker_spec(image=name, command=("/bin/busybox", "id")))
        site.end(run)
        assert site.output(run).startswith("uid=1500(ann) gid=1600")
    finally:
        site.clear()
        remove_image(name)


def test_a_preparation_that_nobody_wants_any_more_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        spec = a_docker_spec()
        run = RunId(spec.assignment, 1)
        site.runtime.prepare(Launch(run, spec, {}, 1.0, "boot"))
        site.runtime.remove(run)
        until(lambda: not site.runtime.folder(run).exists())
        until(lambda: not [t for t in threading.enumerate() if t.name == f"prepare {run.name}"])
        with an_api() as api:
            assert not api.containers(all=True, filters={"name": run.name})
    finally:
        site.clear()


def test_the_defaults_are_the_safe_ones() -> None:
    assert DockerOptions().mounts == ()
    assert DockerOptions().identity() == (os.getuid() or 1000, os.getgid() or 1000)


def test_a_job_in_a_container_is_told_that_its_emulated_gpu_is_shared_and_cannot_say_so_itself(
    site: Site,
) -> None:
    script = (
        "until [ -e $LOADMASTER_RUN_DIR/pace.json ]; do sleep 0.1; done; cat"
        " $LOADMASTER_RUN_DIR/pace.json"
    )
    run = site.launch(
        a_docker_spec(
            command=sh(
                f"{script}; echo 1 2>/dev/null > $LOADMASTER_RUN_DIR/pace.json || echo refused"
            )
        )
    )
    site.runtime.set_pace(run, 0.125)
    site.end(run)
    said = site.output(run)
    assert json.loads(said[: said.index("}") + 1]) == {"step_s": 0.125}
    assert "refused" in said
