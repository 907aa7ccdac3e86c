"""The one validation: what is wrong is named with what would be right, all at once."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from clusters.models.nodes import Role
from jobs.models import Team
from jobs.secrets import set_secret
from jobs.submission.validation import JobInvalid, JobRequest, validate_job
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team, a_user, at
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def team() -> Team:
    return a_team("research")


@pytest.fixture
def user(team: Team) -> User:
    return a_user("ada", team=team)


@pytest.fixture
def cluster() -> Cluster:
    cluster = a_cluster(name="lab")
    a_node(cluster, gpu_type="V100", gpus=4, cores=16, memory_gb=64)
    a_node(cluster, gpu_type="T4", gpus=1, cores=8, memory_gb=32)
    return cluster


def refused(user: User, **fields: Any) -> dict[str, list[str]]:
    with pytest.raises(JobInvalid) as raised:
        validate_job(user, job_fields(**fields))
    return raised.value.fields


def taken(user: User, **fields: Any) -> JobRequest:
    return validate_job(user, job_fields(**fields))


def test_the_only_cluster_and_the_only_team_need_not_be_named(
    user: User, cluster: Cluster, team: Team
) -> None:
    request = taken(user)
    assert (request.job.cluster, request.job.team) == (cluster, team)
    assert (
        request.job.runtime,
        request.job.gpus_min,
        request.job.gpus_max,
        request.job.total_steps,
    ) == (
        "process",
        1,
        1,
        100,
    )


def test_of_several_clusters_one_must_be_named(user: User, cluster: Cluster) -> None:
    a_cluster(name="annex")
    assert refused(user) == {"cluster": ["is missing; choose one of annex, lab"]}
    assert refused(user, cluster="anex") == {
        "cluster": ["'anex' is none of annex, lab; did you mean annex?"]
    }
    assert taken(user, cluster="lab").job.cluster == cluster


def test_another_team_is_not_even_named(user: User, cluster: Cluster) -> None:
    a_team("rivals")
    assert refused(user, team="rivals") == {"team": ["'rivals' is none of research"]}


def test_an_operator_may_submit_for_any_team(cluster: Cluster, team: Team) -> None:
    assert taken(a_user(operator=True), team="research").job.team == team


def test_everything_wrong_is_said_at_once(user: User, cluster: Cluster) -> None:
    problems = refused(
        user, name=" ", steps=-1, gpus="4..1", cores=float("nan"), colour="red", command=None
    )
    assert set(problems) == {"name", "steps", "gpus", "cores", "colour", "command"}


def test_an_unknown_field_names_the_one_probably_meant(user: User, cluster: Cluster) -> None:
    assert refused(user, gpu=1) == {"gpu": ["is no field of a job; did you mean gpus?"]}
    assert refused(user, epochz=1)["epochz"] == ["is no field of a job; did you mean epochs?"]


def test_of_many_unknown_fields_the_first_are_named(user: User, cluster: Cluster) -> None:
    said = refused(user, **{f"gpu{number}": 1 for number in range(1000)})
    assert [*said] == [*(f"gpu{number}" for number in range(10)), "job"]
    assert said["job"] == ["has 1000 unknown fields (10 are listed); remove them"]


@pytest.mark.parametrize("data", [None, [], "job", 3])
def test_what_is_no_object_is_refused(user: User, data: object) -> None:
    with pytest.raises(JobInvalid, match="must be an object"):
        validate_job(user, data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cores", 0), ("cores", -1), ("cores", float("inf")), ("cores", 1e12), ("cores", "4"),
        ("memory_gb", float("nan")),
        ("memory_gb", 10**400), ("gpus", "0..2"), ("gpus", 10**9), ("gpus_min", -2), ("steps", 0),
        ("steps", 10**30), ("steps", 1.5),
        ("steps", True), ("walltime", -1), ("walltime", "long"), ("tardiness_weight", -0.1),
        ("priority", 10**12), ("weight", 0),
        ("max_retries", -1), ("max_retries", 1000), ("due", "whenever"), ("may_mix", "yes"),
        ("labels", ["a b"]),
        ("name", "x" * 101),
        ("name", "a\nb"), ("runtime", "podman"), ("on_disconnect", "maybe"), ("kind", 3),
        ("checkpoint_place", "a\0"), ("on_walltime", "stop"), ("preemptible", "no"),
        ("signal", "USR3"), ("signal", 10),
        ("exclusive", 1), ("resources", ["mic"]), ("resources", {"mic": -1}),
        ("resources", {"mic": float("nan")}), ("resources", {"a b": 1}),
        ("resources", {"gpus": 1}),
    ],
)  # fmt: skip
def test_absurd_values_are_refused_at_their_field(
    user: User, cluster: Cluster, field: str, value: object
) -> None:
    assert list(refused(user, **{field: value})) == [field]


def test_steps_come_as_a_whole_or_by_epochs(user: User, cluster: Cluster) -> None:
    assert taken(user, steps=None, epochs=3, steps_per_epoch=7).job.total_steps == 21
    assert "either steps" in refused(user, epochs=3)["steps"][0]
    assert "is missing" in refused(user, steps=None, epochs=2)["steps_per_epoch"][0]
    assert (
        "must be at most"
        in refused(user, steps=None, epochs=10**6, steps_per_epoch=2 * 10**9)["steps_per_epoch"][0]
    )


def test_a_job_without_steps_is_a_batch_job_that_runs_once_to_its_end(
    user: User, cluster: Cluster
) -> None:
    job = taken(user, steps=None, walltime="1h", resources={"mic": 2, "fpga": 0}).job
    assert (job.batch, job.total_steps, job.gpus_min, job.gpus_max) == (True, 1, 0, 0)
    assert (job.preemptible, job.on_walltime, job.killed_after_s) == (False, "kill", 3600.0)
    assert job.resources == {"mic": 2.0}
    assert "fixed number" in refused(user, steps=None, gpus="1..2")["gpus"][0]


def test_a_training_job_may_be_stopped_and_runs_past_its_walltime_unless_it_says_otherwise(
    user: User, cluster: Cluster
) -> None:
    job = taken(user, walltime="1h").job
    assert (job.batch, job.preemptible, job.killed_after_s) == (False, True, None)
    ended = taken(user, walltime="1h", on_walltime="kill", preemptible=False).job
    assert (ended.preemptible, ended.killed_after_s) == (False, 3600.0)


def test_a_walltime_below_the_grace_is_warned_of(user: User, cluster: Cluster) -> None:
    (warning,) = taken(user, steps=None, walltime=5).warnings
    assert warning.startswith("walltime: is below the grace of 30 s after SIGTERM")
    assert warning.endswith("run for 35 s")
    assert taken(user, steps=None, walltime=30).warnings == ()


def test_a_signal_that_never_comes_or_comes_at_the_start_is_warned_of(
    user: User, cluster: Cluster
) -> None:
    wanted: dict[str, Any] = {"steps": None, "signal": "USR1@90"}
    never = taken(user, **wanted)
    assert never.warnings[0].startswith("signal: is never sent")
    assert (never.job.signal, never.job.needs_signal) == ("USR1@90", False)
    assert "is sent at the start" in taken(user, **wanted, walltime="90s").warnings[0]
    timely = taken(user, **wanted, walltime="2m")
    assert (timely.warnings, timely.job.needs_signal) == ((), True)


def test_resources_that_no_node_offers_yet_are_warned_of(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpus=0, resources={"mic": 1})
    assert taken(user, steps=None, resources={"mic": 1}).warnings == ()
    (warning,) = taken(user, steps=None, resources={"mic": 2}).warnings
    assert warning.startswith("resources: no node that fits has 2 mic yet, the most is 1")


def test_a_job_needs_no_gpu(user: User, cluster: Cluster) -> None:
    job = taken(user, gpus=0).job
    assert (job.gpus_min, job.gpus_max, job.batch) == (0, 0, False)
    assert list(refused(user, gpus_min=0, gpus_max=2)) == ["gpus_min"]


def test_unknown_gpu_types_are_refused_naming_the_known(user: User, cluster: Cluster) -> None:
    assert refused(user, allowed_types=["V10"]) == {
        "allowed_types": ["'V10' is no GPU type; did you mean V100?; known are: T4, V100"],
    }


def test_a_gpu_range_no_node_can_serve_names_the_largest_that_could(
    user: User, cluster: Cluster
) -> None:
    assert refused(user, gpus="5..8")["gpus"] == [
        "no node of lab can serve 5 GPUs; the largest that could serve the job has 4 of type V100"
    ]
    assert refused(user, gpus_min=2, gpus_max=2, allowed_types=["T4"])["gpus_min"] == [
        "no node of lab can serve 2 GPUs; the largest that could serve the job has 1 of type T4"
    ]
    assert refused(user, gpus=2, allowed_types="T4", cores=8)["gpus"][0].endswith(
        "has 1 of type T4"
    )


def test_the_largest_node_counts_only_where_cores_and_memory_suffice(
    user: User, cluster: Cluster
) -> None:
    a_node(cluster, gpu_type="T4", gpus=8, cores=4, memory_gb=16)
    assert "has 4 of type V100" in refused(user, gpus=6, cores=8)["gpus"][0]


def test_a_range_that_begins_within_reach_is_taken_with_a_warning(
    user: User, cluster: Cluster
) -> None:
    request = taken(user, gpus="2..8")
    assert (request.job.gpus_min, request.job.gpus_max) == (2, 8)
    assert request.warnings == (
        "gpus: at most 4 of 8 can be used; the largest node has 4 of type V100",
    )


def test_gpus_of_several_nodes_of_a_type_are_taken_with_a_warning(
    user: User, cluster: Cluster
) -> None:
    a_node(cluster, gpu_type="V100", gpus=2, cores=16, memory_gb=64)
    request = taken(user, gpus=6)
    assert (request.job.gpus_min, request.job.gpus_max) == (6, 6)
    (warning,) = request.warnings
    assert warning.startswith("gpus: no node of lab can serve 6 GPUs; the job is a gang on several")
    assert refused(user, gpus=7)["gpus"] == [
        "no node of lab can serve 7 GPUs; the largest that could serve the job has 4 of type V100;"
        " nodes of one type can serve 6 together"
    ]


def test_gpus_of_several_types_are_taken_if_the_job_may_mix_them(
    user: User, cluster: Cluster
) -> None:
    assert "gpus" in refused(user, gpus=5)
    assert taken(user, gpus=5, may_mix=True).job.may_mix


def test_nodes_whose_agents_run_no_gangs_do_not_count_together(
    user: User, cluster: Cluster
) -> None:
    a_node(cluster, gpu_type="V100", gpus=4, cores=16, memory_gb=64, features=["process"])
    (message,) = refused(user, gpus=6)["gpus"]
    assert message.endswith("the agents of the others cannot run gangs, install newer ones")


def test_a_batch_job_is_divided_over_nodes_by_its_units(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpu_type="V100", gpus=2, cores=16, memory_gb=64)
    batch: dict[str, Any] = {"steps": None, "epochs": None, "steps_per_epoch": None}
    (message,) = refused(user, gpus=6, **batch)["gpus"]
    assert message.endswith("give units, such as 6, to divide it over nodes")
    assert taken(user, gpus=6, units=6, **batch).job.batch
    assert "units" in refused(user, gpus=7, units=7, **batch)


def test_types_no_node_has_are_refused(user: User, cluster: Cluster) -> None:
    a_gpu_type("A100")
    assert refused(user, allowed_types=["A100"]) == {
        "allowed_types": ["no node of lab has A100; its nodes have T4, V100"]
    }


def test_an_image_where_no_agent_runs_containers_is_refused_with_the_remedy(
    user: User, cluster: Cluster
) -> None:
    cluster.nodes.update(features=["checkpoint", "process"])
    assert refused(user, image="busybox") == {
        "runtime": [
            "no node of lab offers the runtime docker; leave out the image, or add a node with the"
            " docker runtime"
        ]
    }
    a_node(cluster, gpus=1, features=["docker", "process"])
    assert taken(user, image="busybox").job.runtime == "docker"
    assert (
        "largest that could serve the job has 1"
        in refused(user, image="busybox", gpus=2)["gpus"][0]
    )


@pytest.mark.parametrize(
    ("field", "value", "largest"), [("cores", 17, "16"), ("memory_gb", 65, "64")]
)
def test_more_than_any_node_has_is_refused(
    user: User, cluster: Cluster, field: str, value: float, largest: str
) -> None:
    assert refused(user, **{field: value})[field][0].endswith(f"the largest has {largest}")


def test_nodes_that_only_profile_serve_no_job(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpu_type="V100", gpus=16, role=Role.PROFILING)
    assert "gpus" in refused(user, gpus=8)


def test_a_cluster_without_nodes_takes_jobs_with_a_warning(user: User) -> None:
    a_cluster(name="empty")
    request = taken(user, gpus=64)
    assert request.warnings == (
        "cluster: empty has no node that runs jobs yet; the job waits until one joins",
    )


def test_a_due_date_in_the_past_is_taken_with_a_warning(user: User, cluster: Cluster) -> None:
    request = taken(user, due=at(-3600).isoformat())
    assert "is in the past" in request.warnings[0]
    assert request.job.due_at is not None


def test_a_hard_deadline_in_the_past_is_refused(user: User, cluster: Cluster) -> None:
    assert "in the past" in refused(user, deadline=at(-60).isoformat())["deadline"][0]


def test_docker_needs_an_image_and_processes_need_none(user: User, cluster: Cluster) -> None:
    assert "needs an image" in refused(user, runtime="docker")["image"][0]
    assert (
        "is for the docker runtime"
        in refused(user, runtime="process", image="me/train:1")["image"][0]
    )
    assert "no image name" in refused(user, image="me train")["image"][0]
    assert taken(user, image="registry.example/me/train:1").job.runtime == "docker"
    assert (
        "an image's own command is not used"
        in refused(user, image="registry.example/me/train:1", command=None)["command"][0]
    )
    assert "is missing" in refused(user, command=None)["command"][0]


def test_an_image_named_by_its_digest_is_pinned_from_the_start(
    user: User, cluster: Cluster
) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    assert (
        taken(user, image=f"registry.example:5000/me/train:1@{digest}").job.image_digest == digest
    )
    assert taken(user, image="registry.example:5000/me/train:1").job.image_digest == ""
    assert "64 hexadecimal digits" in refused(user, image="me/train@sha256:123")["image"][0]


def test_a_job_goes_to_a_cluster_only_where_a_node_offers_its_runtime(
    user: User, cluster: Cluster
) -> None:
    cluster.nodes.update(features=["docker", "emulated"])
    assert "give an image, or add a node with the process runtime" in refused(user)["runtime"][0]
    assert taken(user, image="me/train:1").job.runtime == "docker"


def test_mounts_of_a_process_are_told_to_have_no_effect(user: User, cluster: Cluster) -> None:
    assert "docker runtime" in taken(user, mounts=["/data:/data:ro"]).warnings[0]


def test_secrets_must_be_the_teams(user: User, cluster: Cluster, team: Team) -> None:
    set_secret(a_team("rivals"), "key", "x")
    set_secret(team, "token", "x")
    problem = refused(user, environment={"KEY": {"secret": "key"}})["environment"][0]
    assert problem == "KEY: team research has no secret 'key'; it has token"
    assert taken(user, environment={"KEY": {"secret": "token"}}).job.environment == {
        "KEY": {"secret": "token"}
    }


def test_reserved_names_are_refused(user: User, cluster: Cluster) -> None:
    assert "reserved" in refused(user, environment={"LOADMASTER_FENCE": "1"})["environment"][0]


def test_jobs_may_only_wait_for_jobs_that_the_user_sees_in_the_cluster(
    user: User, cluster: Cluster, team: Team
) -> None:
    mine, theirs = a_job(cluster, team=team), a_job(cluster)
    elsewhere = a_job(a_cluster(name="annex"), team=team)
    (link,) = taken(user, cluster="lab", dependencies=[str(mine.pk)]).dependencies
    assert (link.on, link.condition) == (mine, "afterok")
    for other in (theirs, elsewhere):
        assert (
            "there is no job"
            in refused(user, cluster="lab", dependencies=[str(other.pk)])["dependencies"][0]
        )
    for text, said in (("7", "there is no job or array 7"), ("7a", "none")):
        assert said in refused(user, cluster="lab", dependencies=[text])["dependencies"][0]


@pytest.mark.parametrize(
    ("state", "condition", "good"),
    [
        ("queued", "afterok", True),
        ("failed", "afterok", False),
        ("cancelled", "afterok", False),
        ("completed", "afterok", True),
        ("completed", "afternotok", False),
        ("failed", "afternotok", True),
        ("failed", "afterany", True),
    ],
)
def test_a_job_may_wait_for_any_end_that_can_still_come(
    user: User, cluster: Cluster, team: Team, state: str, condition: str, good: bool
) -> None:
    other = a_job(cluster, team=team, state=state)
    wanted = f"{condition}:{str(other.pk).upper()}"
    if good:
        (link,) = taken(user, dependencies=[wanted]).dependencies
        assert (link.on, link.condition) == (other, condition)
        return
    (said,) = refused(user, dependencies=[wanted])["dependencies"]
    assert said.endswith(
        f"is {state}, so {condition} can never be satisfied; requeue it first, or leave it out"
    )


def test_a_job_named_twice_with_different_conditions_is_refused(
    user: User, cluster: Cluster, team: Team
) -> None:
    other = a_job(cluster, team=team)
    both = [str(other.pk), f"afterany:{other.pk}"]
    assert "named twice" in refused(user, dependencies=both)["dependencies"][0]


def test_labels_no_node_has_yet_are_warned_of(user: User, cluster: Cluster) -> None:
    assert (
        "labels: no node that fits has imagenet yet" in taken(user, labels=["imagenet"]).warnings[0]
    )


def test_empty_fields_of_a_form_are_fields_not_given(user: User, cluster: Cluster) -> None:
    assert taken(user, due="", image="", gpus="").job.gpus_min == 1


@pytest.mark.parametrize(("steps", "retries"), [(None, 0), (10, 1)])
def test_a_batch_job_runs_once_and_a_training_job_has_a_retry(
    user: User, cluster: Cluster, steps: int | None, retries: int
) -> None:
    assert taken(user, steps=steps).job.max_retries == retries
    assert taken(user, steps=steps, max_retries=3).job.max_retries == 3


def test_a_command_for_a_shell_is_accepted_with_a_warning(user: User, cluster: Cluster) -> None:
    (warning,) = taken(user, command="a && b > f").warnings
    assert "&&, >" in warning
    assert "script" in warning
