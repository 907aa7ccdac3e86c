"""Which jobs are of one kind."""

import pytest
from django.db import IntegrityError, transaction

from jobs.kinds import digest, is_ignored, kinds_for, normalised_command
from jobs.models import Kind
from tests.builders import a_kind, a_team
from tests.interleaving import just_before

TRAIN = ["python", "train.py", "--model", "resnet50", "--batch-size", "64"]


def digest_of(*command: str, **values: str) -> str:
    return digest(**{"runtime": "process", **values}, command=command)


@pytest.mark.parametrize(
    "more",
    [
        ["--seed", "7"],
        ["--seed=7"],
        ["--lr", "0.1"],
        ["--lr", "-0.1"],
        ["--learning_rate=1e-3"],
        ["--epochs", "90"],
        ["--num-train-epochs", "90"],
        ["--output", "/scratch/run1"],
        ["--data-dir", "/data/imagenet"],
        ["--output_dir=relative/place"],
        ["--verbose"],
        ["optimizer.lr=0.1"],
        ["trainer.max_epochs=90"],
        ["seed=3"],
    ],
)
def test_what_does_not_change_a_steps_speed_does_not_change_the_kind(more: list[str]) -> None:
    assert digest_of(*TRAIN, *more) == digest_of(*TRAIN)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--model", "resnet50", "--batch-size", "128"],
        ["python", "train.py", "--model", "resnet18", "--batch-size", "64"],
        ["python", "other.py", "--model", "resnet50", "--batch-size", "64"],
        [*TRAIN, "--fp16"],
        [*TRAIN, "--hidden", "512"],
        [*TRAIN, "model.width=2"],
    ],
)
def test_batch_size_model_parameters_and_unknown_flags_change_the_kind(command: list[str]) -> None:
    assert digest_of(*command) != digest_of(*TRAIN)


def test_a_program_and_a_script_are_known_by_their_last_part_wherever_they_lie() -> None:
    assert normalised_command(["/usr/bin/python", "/app/v1/train.py"]) == ["python", "train.py"]


def test_paths_in_any_argument_do_not_belong_to_the_kind() -> None:
    assert digest_of("python", "train.py", "/data/a") == digest_of("python", "train.py", "/data/b")
    assert digest_of("python", "train.py", "--images=s3://a/b") == digest_of(
        "python", "train.py", "--images=s3://c/d"
    )


def test_a_configuration_file_belongs_to_the_kind_but_not_its_folder() -> None:
    large = digest_of("python", "train.py", "--config", "/a/large.yaml")
    assert large == digest_of("python", "train.py", "--config", "/b/large.yaml")
    assert large != digest_of("python", "train.py", "--config", "/a/small.yaml")
    assert digest_of("train.py", "--config=/a/x.yaml") != digest_of(
        "train.py", "--config=/a/y.yaml"
    )


def test_the_words_of_a_shell_command_are_looked_at_one_by_one() -> None:
    assert digest_of("sh", "-c", "python train.py --seed 1 --batch-size 8") == digest_of(
        "/bin/sh", "-c", "python train.py --batch-size 8"
    )
    assert digest_of("sh", "-c", "python train.py --batch-size 8") != digest_of(
        "sh", "-c", "python train.py --batch-size 9"
    )


def test_a_shell_command_that_no_shell_would_take_stands_for_itself() -> None:
    assert normalised_command(["sh", "-c", "echo 'open"]) == ["sh", "-c", "echo 'open"]


def test_a_flag_without_a_value_does_not_swallow_the_next_flag() -> None:
    assert normalised_command(["train", "--seed", "--fp16"]) == ["train", "--fp16"]


def test_another_image_is_another_kind() -> None:
    assert digest_of(image="a:1") != digest_of(image="a:2")


def test_a_users_name_makes_the_kind_whatever_the_command_says() -> None:
    assert digest_of("python", "a.py", name="bert") == digest_of(
        "python", "b.py", "--batch-size", "9", name=" bert "
    )
    assert digest_of("python", "a.py", name="bert") != digest_of("python", "a.py", name="gpt")


@pytest.mark.parametrize("name", ["--seed", "LR", "data_dir", "log-path", "optimizer.lr"])
def test_names_are_ignored_however_they_are_written(name: str) -> None:
    assert is_ignored(name)


@pytest.mark.parametrize("name", ["--batch-size", "model_path", "config-file", "lru", "hidden"])
def test_names_that_may_tell_of_the_model_are_not_ignored(name: str) -> None:
    assert not is_ignored(name)


@pytest.mark.django_db
def test_the_same_properties_give_the_same_kind_and_a_given_name_is_its_name() -> None:
    team = a_team().pk

    def kind(name: str, *command: str) -> tuple[int, str]:
        (found,) = kinds_for({(team, digest_of(*command, name=name)): name}).values()
        return found.pk, found.name

    assert kind("", "python", "a.py", "--seed", "1") == kind("", "python", "a.py", "--seed", "2")
    assert kind("", "python", "a.py")[1] == ""
    assert kind("bert", "python", "a.py")[1] == "bert"


@pytest.mark.django_db
def test_a_kind_is_of_one_team_whatever_others_call_theirs() -> None:
    one, two = a_team(), a_team()
    names = {(team.pk, digest_of(name=name)): name for team in (one, two) for name in ("a", "b")}
    a_kind("a", digest=digest_of(name="a"))  # a published one is no team's
    found = kinds_for(names)
    assert {key: (k.team_id, k.digest) for key, k in found.items()} == {key: key for key in names}
    assert len({kind.pk for kind in found.values()}) == 4
    assert kinds_for(names) == found
    assert list(kinds_for({(one.pk, digest_of(name="a")): "a"}).values()) == [
        found[one.pk, digest_of(name="a")]
    ]


@pytest.mark.django_db
def test_of_two_requests_that_make_a_kind_at_once_both_get_the_one() -> None:
    key = (a_team().pk, digest_of(name="a"))
    with just_before("SAVEPOINT", lambda: Kind.objects.create(team_id=key[0], digest=key[1])):
        found = kinds_for({key: "a"})
    assert found[key] == Kind.objects.get()


@pytest.mark.django_db
def test_the_database_has_one_kind_of_a_digest_for_each_team_and_one_for_all() -> None:
    for values in ({"team": a_team()}, {"team": None}):
        Kind.objects.create(digest="d" * 64, **values)
        with pytest.raises(IntegrityError), transaction.atomic():
            Kind.objects.create(digest="d" * 64, **values)


def test_the_digest_of_a_command_is_the_same_in_every_version() -> None:
    """With another digest all kinds without a name would be measured anew."""
    of = digest(runtime="docker", image="pytorch:2", command=["python", "train.py", "--seed", "1"])
    assert of == "b6450bc8bb9e2820df3d56b207bf984f477496be3b0bef4ccf61444844ba336b"
