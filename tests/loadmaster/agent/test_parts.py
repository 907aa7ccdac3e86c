"""The agent's small pure parts: outcomes, masking, emulation, admission, progress."""

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY, create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.agent import admission, outcome
from loadmaster.agent.clock import Backoff
from loadmaster.agent.journal import Entry
from loadmaster.agent.logs import Masker
from loadmaster.agent.node.emulated import EmulationError, parse_emulation, read_emulation
from loadmaster.agent.outcome import Standing, outcome_of, read_samples, sample_of, standing
from loadmaster.agent.runtimes.base import PROGRESS, Exit, RunId, Runtime, StopBy
from loadmaster.files import write_json
from loadmaster.protocol import AssignmentState, DeviceReport, ReasonClass
from loadmaster.samples import NOT_NUMBERS, ProgressSample
from tests.builders_agent import a_spec, an_emulation

S, R = AssignmentState, ReasonClass


@pytest.mark.parametrize(
    ("ended", "state", "reason_class"),
    [
        (Exit(0.0, exit_code=0), S.SUCCEEDED, None),
        (Exit(0.0, exit_code=0, stopped_by=StopBy.PREEMPT), S.SUCCEEDED, None),
        (Exit(0.0, exit_code=75, stopped_by=StopBy.PREEMPT), S.PREEMPTED, R.PREEMPT),
        (Exit(0.0, exit_code=-15, stopped_by=StopBy.PREEMPT), S.PREEMPTED, R.PREEMPT),
        (Exit(0.0, exit_code=-9, stopped_by=StopBy.PREEMPT, killed=True), S.PREEMPTED, R.PREEMPT),
        (Exit(0.0, exit_code=-15, stopped_by=StopBy.CANCEL), S.CANCELLED, R.OPERATOR),
        (Exit(0.0, exit_code=75, stopped_by=StopBy.LEASE), S.PREEMPTED, R.LEASE),
        (Exit(0.0, exit_code=143, stopped_by=StopBy.LEASE), S.PREEMPTED, R.LEASE),
        (Exit(0.0, exit_code=-9, stopped_by=StopBy.LEASE, killed=True), S.FAILED, R.LEASE),
        (Exit(0.0, exit_code=-9, stopped_by=StopBy.OOM, killed=True), S.FAILED, R.OOM),
        (Exit(0.0, exit_code=-9, oom=True), S.FAILED, R.OOM),
        (Exit(0.0, exit_code=75, stopped_by=StopBy.SIGNAL), S.PREEMPTED, R.OPERATOR),
        (Exit(0.0, exit_code=76), S.FAILED, R.LEASE),
        (Exit(0.0, exit_code=76, stopped_by=StopBy.PREEMPT), S.FAILED, R.LEASE),
        (Exit(0.0, exit_code=75), S.FAILED, R.USER),
        (Exit(0.0, exit_code=-9), S.FAILED, R.USER),
        (Exit(0.0, exit_code=1), S.FAILED, R.USER),
        (Exit(0.0, error="the run's guard was killed"), S.FAILED, R.NODE),
        (Exit(0.0, started=False, error="the command cannot be started: no"), S.FAILED, R.USER),
        (Exit(0.0, started=False, error="no room"), S.FAILED, R.NODE),
        (Exit(0.0, started=False, stopped_by=StopBy.CANCEL), S.CANCELLED, None),
        (Exit(0.0, started=False, stopped_by=StopBy.PREEMPT), S.PREEMPTED, R.PREEMPT),
        (Exit(0.0, started=False, stopped_by=StopBy.LEASE), S.FAILED, R.LEASE),
    ],
)
def test_an_end_means(
    ended: Exit, state: AssignmentState, reason_class: ReasonClass | None
) -> None:
    outcome = outcome_of(ended)
    assert (outcome.state, outcome.reason_class) == (state, reason_class)


def test_a_job_whose_own_term_was_over_counts_as_preempted() -> None:
    assert outcome_of(Exit(0.0, exit_code=75), saved=True).state is S.PREEMPTED


def test_state_saved_despite_a_childs_oom_counts_as_preempted() -> None:
    ended = Exit(0.0, exit_code=75, oom=True)
    assert outcome_of(ended, saved=True).state is S.PREEMPTED


def test_a_failures_reason_holds_its_last_words() -> None:
    assert (
        outcome_of(Exit(0.0, exit_code=3), last_words="ValueError: no").reason
        == "the job ended with exit code 3: ValueError: no"
    )
    assert "SIGSEGV" in outcome_of(Exit(0.0, exit_code=-11)).reason


def test_a_failure_on_a_broken_gpu_is_not_the_jobs_fault() -> None:
    fault = "GPU GPU-1 is unhealthy: GPU is lost"
    outcome = outcome_of(Exit(0.0, exit_code=1), last_words="CUDA error", gpu_fault=fault)
    assert outcome.reason_class is ReasonClass.GPU
    assert outcome.reason == f"{fault}; the job ended with exit code 1: CUDA error"


class TestMasker:
    masker = Masker(["hunter2", "ter2go", ""])

    def test_covers_overlapping_secrets_and_keeps_lengths(self) -> None:
        assert self.masker.piece(b"a hunter2go b") == b"a " + b"*" * 9 + b" b"

    def test_writes_three_stars_in_texts(self) -> None:
        assert self.masker.text("the word is hunter2") == "the word is ***"

    @pytest.mark.parametrize(
        ("piece", "held"), [(b"abc hunt", 4), (b"abc", 0), (b"x t", 1), (b"hunter2", 4), (b"", 0)]
    )
    def test_holds_back_what_may_become_a_secret(self, piece: bytes, held: int) -> None:
        assert self.masker.held_back(piece) == held

    @given(
        secrets=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3),
        piece=st.text("abc", max_size=60).map(str.encode),
    )
    def test_covers_each_byte_of_a_secret_and_no_other(
        self, secrets: list[str], piece: bytes
    ) -> None:
        values, expected = [value.encode() for value in secrets], bytearray(piece)
        for value in values:
            for at in range(len(piece) - len(value) + 1):
                if piece.startswith(value, at):
                    expected[at : at + len(value)] = b"*" * len(value)
        assert Masker(secrets).piece(piece) == bytes(expected)
        ends = [piece[at:] for at in range(len(piece))]
        begun = [end for end in ends if any(v.startswith(end) and v != end for v in values)]
        assert Masker(secrets).held_back(piece) == max(map(len, begun), default=0)

    def test_covers_a_secret_that_repeats_itself_at_once(self) -> None:
        masker, begun_s = Masker(["a" * 32_768]), time.monotonic()
        assert masker.piece(b"a" * 300_000) == b"*" * 300_000
        assert time.monotonic() - begun_s < 1.0, "it took 17 s, by every place for itself"

    def test_without_secrets_changes_nothing(self) -> None:
        assert Masker([]).piece(b"as it is") == b"as it is"
        assert Masker([]).held_back(b"as it is") == 0


class TestEmulation:
    data = {
        "gpu_type": "V100",
        "count": 2,
        "step_s": {"resnet": {1: 0.43, 4: 0.2}, "default": {1: 1.0}},
    }

    def test_paces_a_kind_by_its_number_of_gpus(self) -> None:
        emulation = parse_emulation(self.data)
        assert [emulation.pace_s("resnet", gpus) for gpus in (1, 2, 4, 8)] == [0.43, 0.43, 0.2, 0.2]
        assert emulation.pace_s("other", 1) == 1.0

    def test_paces_nothing_it_has_no_entry_for(self) -> None:
        assert parse_emulation({"gpu_type": "V100"}).pace_s("resnet", 1) is None

    def test_models_watts_and_says_so(self) -> None:
        emulation = an_emulation(power_noise=0.1)
        sample = emulation.sample("gpu", True, random.Random(3))
        assert sample.power_source == "modelled"
        assert sample.power_w is not None
        assert 150 < sample.power_w < 350
        assert emulation.power_w(False, random.Random(3)) < 80

    def test_reads_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "gpus.yaml"
        path.write_text("gpu_type: K80\ncount: 3\nstep_s:\n  default: {1: 0.5}\n")
        assert len(read_emulation(path).devices("n1")) == 3

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"gpu_type": ""}, "gpu_type"),
            ({"gpu_type": 3}, "gpu_type"),
            ({"count": 0}, "count"),
            ({"count": True}, "count"),
            ({"count": "two"}, "count"),
            ({"idle_w": -1}, "idle_w"),
            ({"peak_w": float("nan")}, "peak_w"),
            ({"step_s": {"resnet": 3}}, "step_s"),
            ({"step_s": {"resnet": {0: 1.0}}}, "step_s.resnet"),
            ({"step_s": {"resnet": {1: 0}}}, "step_s.resnet.1"),
            ({"watts": 3}, "watts"),
        ],
    )
    def test_names_what_is_wrong(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(EmulationError, match=field):
            parse_emulation({**self.data, **change})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[1, 2]", "must hold fields by name, such as `gpu_type: V100`"),
            ("", "must hold fields by name"),
            ("a: {", "is no YAML"),
            ("gpu_type: V100\ngpu_type: K80\n", "line 2: 'gpu_type' is given twice"),
            ("gpu_type: V100\nstep_s:\n  a: {1: 0.5, 1: 5}\n", "line 3: 1 is given twice"),
            ("gpu_type: V100\nstep_s:\n  a: {1: fast}\n", "step_s.a"),
            ("# " + "x" * 1_000_000, "larger than 1,000,000 bytes"),
        ],
    )
    def test_refuses_a_file_and_says_where(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "gpus.yaml").write_text(text)
        with pytest.raises(EmulationError, match=re.escape(said)):
            read_emulation(tmp_path / "gpus.yaml")


class TestAdmission:
    offer = RunId("a1", 1)
    own = tuple(
        DeviceReport(f"emulated-n1-{index}", "V100", 16.0, healthy=index < 2, trouble="GPU is lost")
        for index in range(3)
    )

    def objection(
        self, live: tuple[Entry, ...] = (), **changes: Any
    ) -> tuple[ReasonClass, str] | None:
        return admission.objection(
            a_spec(**changes), self.offer, runtime="process", devices=self.own, live=live
        )

    def test_takes_a_job_that_fits(self) -> None:
        assert self.objection() is None

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"required_features": ("process", "teleport")}, "teleport"),
            ({"devices": ("gpu-9",)}, "gpu-9"),
            ({"devices": ("emulated-n1-2",)}, "emulated-n1-2 is unhealthy: GPU is lost"),
            ({"runtime": "docker"}, "docker"),
            ({"fence": 2}, "not that of the offer"),
            ({"version": 9}, "not that of the offer"),
            ({"job": "../../etc"}, "ids"),
            ({"command": ()}, "command"),
        ],
    )
    def test_objects_to_what_it_cannot_run(self, change: dict[str, Any], word: str) -> None:
        found = self.objection(**change)
        assert found is not None
        assert word in found[1]

    def test_objects_to_a_device_that_another_assignment_holds(self) -> None:
        other = Entry("a2", 5, S.RUNNING, devices=("emulated-n1-0",))
        found = self.objection(live=(other,))
        assert found is not None
        assert "held by assignment a2" in found[1]
        assert self.objection(live=(replace(other, slot=1),)) is None

    def test_a_job_gets_few_variables_of_the_agents(self) -> None:
        environ = {
            "PATH": "/bin",
            "HOME": "/root",
            "LOADMASTER_TOKEN": "t",
            "AWS_SECRET_ACCESS_KEY": "s",
            "PYTHONPATH": "/p",
        }
        found = admission.node_environment(environ)
        assert set(found) <= {"PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV"}
        assert found["PYTHONPATH"] == "/p"

    def launch(self, **changes: Any) -> dict[str, str]:
        spec = a_spec(**changes)
        folder = admission.checkpoint_folder(spec, Path("/state"), Path("/shared"))
        devices = {"CUDA_VISIBLE_DEVICES": ""}
        return admission.launch_environment(spec, folder, node={"PATH": "/bin"}, devices=devices)

    def test_a_jobs_variables_cannot_break_the_contract(self) -> None:
        found = self.launch(
            environment={"LOADMASTER_FENCE": "9", "CUDA_VISIBLE_DEVICES": "0", "PATH": "/mine"},
            secrets={"KEY": "s"},
        )
        assert (found["LOADMASTER_FENCE"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "")
        assert (found["PATH"], found["KEY"]) == ("/mine", "s")

    def test_the_contract_holds_what_the_training_library_reads(self) -> None:
        found = self.launch(steps_quota=4)
        assert found["LOADMASTER_STEPS"] == "10"
        assert found["LOADMASTER_STEPS_QUOTA"] == "4"
        assert found["LOADMASTER_DEVICES"] == "emulated-n1-0"
        assert "LOADMASTER_STEPS_QUOTA" not in self.launch()

    @pytest.mark.parametrize(
        ("change", "folder"),
        [
            ({}, "/shared/job-1"),
            ({"checkpoint_place": "/shared/ckpt"}, "/shared/ckpt"),
            ({"checkpoint_place": "relative"}, "/shared/job-1"),
            (
                {"purpose": "profiling", "checkpoint_place": "/shared/ckpt"},
                "/state/runs/lm-a1-1/checkpoints",
            ),
        ],
    )
    def test_checkpoints_go_to(self, change: dict[str, Any], folder: str) -> None:
        assert self.launch(**change)["LOADMASTER_CHECKPOINT_DIR"] == folder


class TestProgress:
    line = {
        "at_s": 1.0,
        "event": "progress",
        "step": 5,
        "launch_steps": 2,
        "elapsed_s": 0.5,
        "loss": 0.25,
        "metrics": {"f1": 1},
    }

    def read(self, lines: list[dict[str, Any]]) -> tuple[ProgressSample, ...]:
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        runtime = create_autospec(Runtime, instance=True)
        runtime.read.return_value = text
        samples, offset = read_samples(runtime, RunId("a", 1), 0)
        assert offset == len(text)
        runtime.read.assert_called_once_with(RunId("a", 1), PROGRESS, 0, ANY)
        return samples

    def test_parses_no_blank_lines_of_which_a_job_may_write_many(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsed: list[bytes] = []
        monkeypatch.setattr(outcome, "parse_object", lambda line: parsed.append(line))
        runtime = create_autospec(Runtime, instance=True)
        runtime.read.return_value = b"\n \n\n" * 1000 + b"{}\n"
        assert read_samples(runtime, RunId("a", 1), 0) == ((), 4003)
        runtime.size.return_value = 4003
        assert standing(runtime, RunId("a", 1)) == Standing()
        assert parsed == [b"{}", b"{}"]

    def test_reads_what_the_training_library_writes(self) -> None:
        sample = sample_of(self.line)
        assert sample is not None
        assert (sample.step, sample.loss, sample.steps_per_s) == (5, 0.25, None)

    @pytest.mark.parametrize(
        "change",
        [
            {"event": "warning"},
            {"step": -1},
            {"step": "5"},
            {"step": 2**63},
            {"at_s": None},
            {"at_s": 10**400},
            {"launch_steps": True},
        ],
    )
    def test_passes_over_what_makes_no_sense(self, change: dict[str, Any]) -> None:
        assert sample_of({**self.line, **change}) is None

    @pytest.mark.parametrize(
        ("change", "kept"),
        [
            ({"step": float("nan")}, 0),
            ({"step": 5.5}, 0),
            ({"steps_per_s": float("nan")}, 1),
            ({"setup_s": float("-inf")}, 1),
            ({"elapsed_s": 10**400}, 1),
        ],
    )
    def test_the_server_is_told_of_figures_that_are_no_numbers(
        self, change: dict[str, Any], kept: int
    ) -> None:
        lines = [{**self.line, **change}, {**self.line, **change}, self.line]
        events = [sample.event for sample in self.read(lines)]
        assert events == [*["progress"] * (2 * kept + 1), NOT_NUMBERS]

    def test_a_loss_may_be_any_number(self) -> None:
        (sample,) = self.read([{**self.line, "loss": float("nan")}])
        assert sample.event == "progress"

    def test_a_number_that_is_not_finite_is_left_out(self) -> None:
        sample = sample_of({**self.line, "loss": float("inf")})
        assert sample is not None
        assert sample.loss is None


class TestBackoff:
    def test_waits_are_drawn_from_the_whole_of_a_growing_interval(self) -> None:
        backoff = Backoff(base_s=1.0, cap_s=8.0, jitter=random.Random(1))
        waits = [
            [Backoff.failed(backoff, f"key {key}", 0.0) for _ in range(6)] for key in range(200)
        ]
        for failures, ceiling_s in enumerate((1, 2, 4, 8, 8, 8)):
            drawn = [row[failures] for row in waits]
            assert 0 <= min(drawn) < 0.1 * ceiling_s
            assert 0.9 * ceiling_s < max(drawn) <= ceiling_s

    def test_keys_wait_for_themselves_alone(self) -> None:
        backoff = Backoff(jitter=random.Random(2))
        wait_s = backoff.failed("a", 100.0)
        assert not backoff.is_due("a", 100.0 + wait_s / 2)
        assert backoff.is_due("a", 100.0 + wait_s)
        assert backoff.is_due("b", 100.0)

    def test_a_success_forgets(self) -> None:
        backoff = Backoff(base_s=1.0, jitter=random.Random(2))
        for _ in range(5):
            backoff.failed("a", 0.0)
        backoff.succeeded("a")
        assert backoff.is_due("a", 0.0)
        assert backoff.failed("a", 0.0) <= 1.0


def test_a_file_is_not_written_through_a_link_in_its_place(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / ".account.json.tmp").symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        write_json(tmp_path / "account.json", {"token": "secret"})
    assert other.read_text() == "theirs"
