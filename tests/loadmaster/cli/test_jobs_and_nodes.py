"""The command line against a real server: answers, exit codes, and where the token is kept."""

import json
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from knox.models import AuthToken

from clusters.models import Node
from jobs.forecasts.run_times import remember_run_time
from jobs.lifecycle import JobState
from jobs.models import Secret
from jobs.moves import note_job
from loadmaster import __version__
from loadmaster.cli import main as cli
from loadmaster.client.account import config_file
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_kind, a_node
from tests.builders_cli import answer, of, run
from tests.builders_jobs import a_placement, output
from tests.builders_pages import a_forecast

PASSWORD = "a long password"


def test_logging_in_keeps_the_token_for_its_owner_only(server: str, user: User) -> None:
    done = run("login", server, "--user", "ada", stdin=PASSWORD + "\n")
    assert done.exit_code == 0, done.output
    assert PASSWORD not in done.output
    assert config_file().stat().st_mode & 0o777 == 0o600
    assert json.loads(config_file().read_text())["token"] not in done.output
    assert "ada; teams: research (maintainer)" in run("whoami").stdout
    assert run("logout").exit_code == 0
    assert not config_file().exists()
    assert AuthToken.objects.filter(user=user).count() == 0


def test_a_wrong_password_is_said_and_keeps_nothing(server: str, user: User) -> None:
    done = run("login", server, "--user", "ada", stdin="guess\n")
    assert (done.exit_code, config_file().exists()) == (1, False)
    assert "wrong" in done.stderr


def test_a_kept_token_is_sent_to_its_own_server_only(server: str, user: User) -> None:
    run("login", server, "--user", "ada", stdin=PASSWORD + "\n")
    assert run("--url", server.replace("localhost", "127.0.0.1"), "whoami").exit_code == 1


def test_without_a_login_the_remedy_is_named() -> None:
    done = run("jobs")
    assert done.exit_code == 2
    assert "loadmaster login" in done.stderr


def test_a_server_that_is_not_there_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.client.rest.FIRST_PAUSE_S", 0.0)
    done = run("--url", "http://127.0.0.1:1", "--token", "x", "jobs")
    assert done.exit_code == 1
    assert "does not answer" in done.stderr


def test_jobs_are_listed_for_people_and_for_programs(ada: User, node: Node) -> None:
    a_placement(of(ada, node, name="[bold]bert[/bold]", state=JobState.RUNNING), node)
    of(ada, node, name="old", state=JobState.FAILED)
    shown = run("jobs").stdout
    assert "[bold]bert[/bold]" in shown
    assert "volta (1 x V100)" in shown
    assert [j["name"] for j in answer("jobs")] == ["[bold]bert[/bold]"]
    assert len(answer("jobs", "--all", "--mine")) == 2
    assert [j["name"] for j in answer("jobs", "--state", "failed", "--state", "held")] == ["old"]


def test_a_job_is_shown_with_why_it_waits(ada: User, node: Node) -> None:
    job = of(ada, node, waiting_code="power_cap")
    done = run("show", job.pk)
    assert "power cap is reached" in done.stdout
    assert answer("show", job.pk)["waiting"]["code"] == "power_cap"
    assert "expected" not in done.stdout
    unknown = a_forecast(job, first=False, start_at=None, why="a riddle")
    assert "start unknown: a riddle" in run("show", job.pk).stdout
    unknown.delete()
    a_forecast(job, node="volta", gpus=2)
    done = run("show", job.pk)
    assert "2 x GPU on volta, place 1 in the queue" in " ".join(done.stdout.split())


def test_unknown_run_time_is_shown_as_an_interval(ada: User, node: Node) -> None:
    job = of(ada, node, kind=a_kind(), waiting_code="power_cap")
    assert "unknown until a first run" in run("show", job.pk).stdout
    assert "Runs" not in run("jobs").stdout
    with transaction.atomic():
        for _ in range(20):
            remember_run_time(job, 60.0, timezone.now())
    words = "about 1 min, as 80% of 20 similar jobs of its user"
    assert words in " ".join(run("show", job.pk).stdout.split())
    assert answer("show", job.pk)["run_time"]["words"] == words
    assert answer("jobs")[0]["run_time"]["high_s"] == 60.0
    assert "Runs" in run("jobs").stdout


def test_a_job_is_found_by_its_name_and_by_the_beginning_of_its_id(ada: User, node: Node) -> None:
    job = of(ada, node, name="bert")
    of(ada, node, name="bert-large")
    shown = [answer("show", word)["id"] for word in (job.pk, "bert", str(job.pk)[:8])]
    assert shown == [str(job.pk)] * 3
    assert run("history", "bert").exit_code == 0
    done = run("show", "elmo")
    assert (done.exit_code, "there is no job elmo" in done.stderr) == (1, True)


def test_of_several_jobs_of_one_name_the_only_one_that_is_not_over_is_meant(
    ada: User, node: Node
) -> None:
    of(ada, node, name="bert", state=JobState.FAILED)
    first = of(ada, node, name="bert")
    assert answer("hold", "bert")["id"] == str(first.pk)
    second = of(ada, node, name="bert")
    done = run("cancel", "bert")
    assert done.exit_code == 1
    assert all(str(job.pk)[:8] in done.stderr for job in (first, second))


def test_an_empty_list_says_so(ada: User, node: Node) -> None:
    assert "--all" in run("jobs").stderr
    assert answer("jobs") == []


def test_actions_say_what_became_of_the_job(ada: User, node: Node) -> None:
    job = of(ada, node, name="bert", steps_per_epoch=100)
    said = [run(verb, job.pk).stdout.strip() for verb in ("hold", "release", "cancel", "requeue")]
    assert said == ["bert is held", "bert is queued", "bert is cancelled", "bert is queued"]
    assert [e["event"] for e in answer("history", job.pk)] == [
        "hold",
        "release",
        "cancelled",
        "requeue",
    ]
    assert "cancelled" in run("history", job.pk).stdout
    assert answer("clone", job.pk, "--set", "name=again")["job"]["name"] == "again"


def test_what_the_state_does_not_allow_exits_1(ada: User, node: Node) -> None:
    done = run("release", of(ada, node).pk)
    assert (done.exit_code, "it cannot be released" in done.stderr) == (1, True)
    assert run("show", a_job(node.cluster).pk).exit_code == 1


def test_a_log_is_printed_as_it_is(ada: User, node: Node) -> None:
    job = of(ada, node, state=JobState.COMPLETED)
    assignment = a_placement(job, node, AssignmentState.SUCCEEDED, ended_ago_s=60)
    output(assignment, b"[red]epoch 1[/red]\n", b"epoch 2")
    output(assignment, b"oops", stream="stderr")
    assert run("logs", job.pk, "-f").stdout == "[red]epoch 1[/red]\nepoch 2"
    assert run("logs", job.pk, "--stderr").stdout == "oops"
    assert run("logs", job.pk, "--tail", 2).stdout == " 2"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_log_goes_on_past_many_launches_without_output(
    ada: User, node: Node, follow: tuple[str, ...]
) -> None:
    job = of(ada, node, state=JobState.COMPLETED)
    launches = [
        a_placement(job, node, AssignmentState.PREEMPTED, ended_ago_s=60) for _ in range(50)
    ]
    output(launches[0], b"epoch 1\n")
    output(launches[-1], b"epoch 2\n")
    assert run("logs", job.pk, *follow).stdout == "epoch 1\nepoch 2\n"


def test_operators_run_nodes_by_name(root: User, node: Node) -> None:
    assert "0/2 in use" in run("nodes").stdout
    assert run("cordon", "volta", "--reason", "fan").stdout == "volta is cordoned, for production\n"
    assert answer("uncordon", "volta")["state"] == "ready"
    assert answer("drain", node.pk, "--until", "2040-01-01T00:00:00Z")["state"] == "draining"
    assert answer("role", "volta", "profiling")["role"] == "profiling"
    assert run("role", "volta", "king").exit_code == 2
    assert [d["slots"] for d in answer("slots", "volta", "2")["devices"]] == [2, 2]
    one = answer("slots", "volta", "1", "--gpu", node.devices.order_by("uuid")[0].uuid)
    assert [d["slots"] for d in one["devices"]] == [1, 2]
    assert run("slots", "volta", "0").exit_code == 2
    assert run("cordon", "nobody").exit_code == 1
    assert run("reschedule").exit_code == 0
    assert len(run("enrol-token", "--role", "both").stdout.strip()) > 20


def test_nodes_name_their_unhealthy_gpus(root: User, node: Node) -> None:
    first = node.devices.order_by("uuid")[0]
    node.devices.filter(pk=first.pk).update(healthy=False, trouble="GPU is lost")
    said = run("nodes").stdout
    assert "0/2 in use, 1" in said
    assert f"volta: GPU {first.uuid} is unhealthy: GPU is lost" in said
    Node.objects.filter(pk=node.pk).update(gpu_trouble="Driver/library version mismatch")
    assert "GPUs may be missing: Driver/library version mismatch" in run("nodes").stdout


def test_nodes_say_where_the_kernel_does_not_limit_jobs(root: User, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(features=["memory_limit", "process"])
    said = run("nodes").stdout
    assert "the kernel does not limit jobs' cores on volta" in said
    assert "limit jobs' memory" not in said


def test_two_nodes_of_one_name_need_their_cluster(root: User, node: Node) -> None:
    a_node(a_cluster(name="annex"), name="volta")
    done = run("cordon", "volta")
    assert (done.exit_code, "--cluster" in done.stderr) == (2, True)
    assert run("cordon", "volta", "--cluster", "annex").exit_code == 0
    assert run("reschedule").exit_code == 2


def test_a_name_nobody_has_is_refused_with_where_to_look(ada: User, node: Node) -> None:
    done = run("logs", "digits")
    assert (done.exit_code, "loadmaster jobs --all" in done.output) == (1, True)


def test_a_jobs_history_says_why(ada: User, node: Node) -> None:
    job = of(ada, node)
    note_job(job, "progress_lost", data={"message": "began at step 0", "fence": 2})
    assert "began at step 0" in run("history", job.pk).stdout


def test_a_policy_is_chosen_and_shown(root: User, node: Node) -> None:
    assert answer("policy", "set", "randomized_greedy", "iterations=7")["policy_parameters"] == {
        "iterations": 7
    }
    assert (
        "lab: randomized_greedy (iterations=7), every 300 s, seed 1" in run("policy", "show").stdout
    )
    assert "fifo" in run("policy", "list").stdout
    wrong = run("policy", "set", "magic")
    assert (wrong.exit_code, "known are: cost_search, randomized_greedy" in wrong.stderr) == (
        2,
        True,
    )


def test_who_is_no_operator_is_told_so(ada: User, node: Node) -> None:
    done = run("cordon", "volta")
    assert (done.exit_code, "only operators" in done.stderr) == (1, True)


def test_a_secret_is_read_from_stdin(ada: User) -> None:
    assert run("secret", "set", "research", "token", stdin="s3cret\n").exit_code == 0
    assert run("secret", "list", "research").stdout.strip() == "token"
    assert answer("secret", "list", "research") == ["token"]
    assert run("secret", "delete", "research", "token").exit_code == 0
    assert not Secret.objects.exists()


def test_the_version_needs_no_server() -> None:
    assert run("version").stdout.strip() == __version__


def test_a_report_that_does_not_hold_exits_1_and_one_that_is_none_2(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("{}")
    assert run("check-report", path).exit_code == 2
    assert run("check-report", tmp_path / "none.json").exit_code == 2
    job = {
        "name": "J1",
        "state": "failed",
        "first_loss": 1.0,
        "final_loss": 2.0,
        "placements": [],
        "profile_runs": [],
    }
    path.write_text(json.dumps({"version": 2, "jobs": [job]}))
    done = run("check-report", path)
    assert (done.exit_code, "broken promise" in done.stdout) == (1, True)
    assert json.loads(run("check-report", path, "--json").stdout)["holds"] is False


def test_the_agents_commands_are_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["loadmaster", "agent", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "agent" in capsys.readouterr().out
