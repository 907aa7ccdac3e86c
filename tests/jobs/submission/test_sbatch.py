"""Scripts for Slurm as they are submitted: what their options become, and what is refused."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Device, Node
from controlplane.loop.live.observe import observe
from controlplane.loop.live.rows import Rows
from jobs.models import Job
from jobs.services import job_clone, job_data, job_hold, job_release, job_submit
from jobs.submission.sbatch import needs
from jobs.submission.validation import JobInvalid, JobRequest, validate_job
from jobs.wording.explanation import explain
from loadmaster.features import features_with
from loadmaster.slurm.options.reading import MAX_SCRIPT, NAMED
from tests.builders import a_cluster, a_gpu_type, a_node, a_team, a_user
from tests.builders_live import a_round

MIB_GB = 2**20 / 1e9


@pytest.fixture
def user(db: None) -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Two nodes of 16 cores with 4 GPUs, which say that their agents know scripts."""
    cluster = a_cluster(name="lab")
    for _ in range(2):
        a_node(cluster, gpus=4, cores=16, memory_gb=64, resources={"mic": 2})
    return cluster


def sbatch(*lines: str, **parts: Any) -> dict[str, Any]:
    """A job's data with a script of these `#SBATCH` lines."""
    text = "\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), "true", ""])
    return {"sbatch": {"script": text, "name": "run.sh", "folder": "/home/ada", **parts}}


def taken(user: User, *lines: str, **parts: Any) -> JobRequest:
    return validate_job(user, sbatch(*lines, **parts))


def refused(user: User, *lines: str, **parts: Any) -> dict[str, list[str]]:
    with pytest.raises(JobInvalid) as raised:
        taken(user, *lines, **parts)
    return raised.value.fields


def test_a_script_without_options_is_a_batch_job_of_one_core_in_its_folder(
    user: User, cluster: Cluster
) -> None:
    job = taken(user, arguments=["a b", "-n"]).job
    assert (job.name, job.batch, job.units, job.cores, job.gpus_min) == ("run.sh", True, 1, 1.0, 0)
    assert (job.script.splitlines()[0], job.command) == ("#!/bin/sh", ["a b", "-n"])
    assert (job.folder, job.output, job.error_output) == ("/home/ada", "slurm-%j.out", "")
    assert (job.max_retries, job.preemptible, job.walltime_s) == (0, False, None)
    assert job.environment == {"SLURM_SUBMIT_DIR": "/home/ada"}


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["--job-name=x y"], {"name": "x"}),
        (["--job-name='x y'"], {"name": "x y"}),
        (["-t 1:30:00"], {"walltime_s": 5400.0, "on_walltime": "kill"}),
        (["--time=0"], {"walltime_s": None}),
        (["-n4 -c 2"], {"units": 4, "cores": 2.0}),
        (["-N 2"], {"units": 2, "nodes": 2}),
        (["-N 2 --ntasks-per-node=3"], {"units": 6, "nodes": 2, "units_per_node": 3}),
        (["-N 1-2 -n 4"], {"units": 4, "nodes": 1}),
        (["--mem-per-cpu=500 -c 2"], {"memory_gb": 1000 * MIB_GB}),
        (["--mem=4G"], {"memory_gb": 4096 * MIB_GB}),
        (["--mem=4G -n 4"], {"memory_gb": 1024 * MIB_GB}),
        (["--mem=4G -N 2 -n 4"], {"memory_gb": 2048 * MIB_GB}),
        (["--mem=0"], {"exclusive": True}),
        (["--gres=gpu:2,mic:1"], {"gpus_min": 2, "gpus_max": 2, "resources": {"mic": 1.0}}),
        (["--gres=gpu:1 -N 2"], {"gpus_min": 2}),
        (["-G V100:2"], {"gpus_min": 2, "allowed_types": ["V100"]}),
        (["--exclusive"], {"exclusive": True}),
        (["-o %x.txt -e err"], {"output": "%x.txt", "error_output": "err"}),
        (["-D sub"], {"folder": "/home/ada/sub"}),
        (["-D /tmp"], {"folder": "/tmp"}),
        (["-a 0-3"], {"output": "slurm-%A_%a.out"}),
        (["--requeue"], {"preemptible": True}),
        (["--no-requeue --requeue"], {"preemptible": True}),
        (["--requeue --no-requeue"], {"preemptible": False}),
        (["-C 'a&b'"], {"labels": ["a", "b"]}),
        (["-C 'v|a'"], {"labels": ["a|v"]}),
        (["--tasks-per-node=3 -N 2"], {"units": 6, "units_per_node": 3}),
        (["-N 0"], {"units": 1, "nodes": 0}),
        (["--time=-1"], {"walltime_s": None}),
        (["--time=2-"], {"walltime_s": 172_800.0}),
        (["--time=9999-0"], {"walltime_s": None}),
        (["--array="], {"output": "slurm-%j.out", "array": None}),
        (["--dependency="], {"output": "slurm-%j.out"}),
        (["--gres=gpu:v100:1"], {"gpus_min": 1, "allowed_types": ["V100"]}),
        (["--gpus=V100"], {"gpus_min": 1, "allowed_types": ["V100"]}),
        (["--gres=gpu:2080TI:1"], {"gpus_min": 1, "allowed_types": ["2080ti"]}),
        (["--gpus=2080ti:1"], {"gpus_min": 1, "allowed_types": ["2080ti"]}),
        (["--gres=tmpspace:10G"], {"resources": {"tmpspace": 10.0}}),
        (["--gres=gpu:2,gmem:512M"], {"gpus_min": 2, "resources": {"gmem": 0.5}}),
        (["--gres=mic"], {"resources": {"mic": 1.0}}),
        # Tasks that share GPUs are one unit for each node.
        (["-n8 -c2 --gres=gpu:1"], {"units": 1, "gpus_min": 1, "cores": 16.0}),
        (["-n4 -N2 --gres=gpu:1"], {"units": 2, "nodes": 2, "gpus_min": 2, "cores": 2.0}),
        (["-n3 -G2 --mem-per-cpu=1G"], {"units": 1, "memory_gb": 3 * 1024 * MIB_GB}),
        (["-n3 -G2 --mem=3G"], {"units": 1, "memory_gb": 3 * 1024 * MIB_GB}),
        (["-n4 -G4"], {"units": 4, "gpus_min": 4, "cores": 1.0}),
        # Nodes with different numbers of GPUs: a unit is a GPU.
        (["-G3 -N2"], {"units": 3, "nodes": 2, "gpus_min": 3, "units_per_node": 0, "cores": 1.0}),
        (["-G5 -N2 -n8 -c2"], {"units": 5, "nodes": 2, "gpus_min": 5, "cores": 4.0}),
        (["-G3 -N2 --mem=4G"], {"units": 3, "memory_gb": 4096 * MIB_GB}),
        (["-n5 -N2 --ntasks-per-gpu=2"], {"units": 3, "nodes": 2, "gpus_min": 3, "cores": 2.0}),
        # Of a range as few nodes as can hold it.
        (["-G3 -N 1-2"], {"units": 1, "nodes": 1, "gpus_min": 3}),
        (["-G5 -N 1-2"], {"units": 5, "nodes": 2, "gpus_min": 5}),
        (["-n 20 -N 1-4"], {"units": 20, "nodes": 2}),
        (["-n 20 -N 1-4 --mem-per-cpu=6G"], {"units": 20, "nodes": 3}),
        # Counts that others imply.
        (["-G4 --gpus-per-task=2"], {"units": 2, "gpus_min": 4}),
        (["-G2 --ntasks-per-gpu=2"], {"units": 1, "gpus_min": 2, "cores": 4.0}),
        (["-n4 --ntasks-per-gpu=2"], {"units": 1, "gpus_min": 2, "cores": 4.0}),
        (["-G2 --cpus-per-gpu=3"], {"gpus_min": 2, "cores": 6.0}),
        (["-n2 -G2 --cpus-per-gpu=3"], {"units": 2, "cores": 3.0}),
        (["-G2 --mem-per-gpu=2G"], {"memory_gb": 4096 * MIB_GB}),
        (["--gpus-per-socket=2 --sockets-per-node=2"], {"gpus_min": 4}),
        (["-t 5 --signal=B:USR1@90"], {"signal": "B:USR1@90"}),
        (["-t 5 --signal=sigusr1"], {"signal": "USR1@60"}),
    ],
)  # fmt: skip
def test_an_option_becomes_a_field(
    user: User, cluster: Cluster, lines: list[str], fields: dict[str, Any]
) -> None:
    a_gpu_type("V100")
    a_node(cluster, gpu_type=a_gpu_type("2080ti"), gpus=2, cores=8, memory_gb=64)
    if lines == ["--job-name=x y"]:
        assert "line 2: 'y' is no option" in refused(user, *lines)["sbatch"][0]
        return
    job = taken(user, *lines).job
    found = {name: getattr(job, name) for name in fields}
    assert found == {n: pytest.approx(v) if n == "memory_gb" else v for n, v in fields.items()}


def test_the_command_line_holds_over_the_script_and_the_jobs_own_fields_over_both(
    user: User, cluster: Cluster
) -> None:
    data = {**sbatch("-n 2 -J script", options=["-J", "words"]), "name": "own", "priority": 3}
    job = validate_job(user, data).job
    assert (job.name, job.units, job.priority) == ("own", 2, 3)


def test_variables_repeat_what_the_options_say(user: User, cluster: Cluster) -> None:
    job = taken(user, "-n 2 -c 4 --mem-per-cpu=1G", host="laptop").job
    assert job.environment == {
        "SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_CPUS_PER_TASK": "4",
        "SLURM_MEM_PER_CPU": "1024", "SLURM_SUBMIT_DIR": "/home/ada", "SLURM_SUBMIT_HOST": "laptop",
    }  # fmt: skip


def test_only_exported_variables_are_taken(user: User, cluster: Cluster) -> None:
    here = {"A": "1", "B": "2"}
    some = taken(user, "--export=A,C=3,D", environment=here)
    assert {n: v for n, v in some.job.environment.items() if n != "SLURM_SUBMIT_DIR"} == {
        "A": "1", "C": "3",
    }  # fmt: skip
    assert some.warnings == ("line 2: --export: D is not set where it was submitted, and left out",)
    assert taken(user, "--export=ALL", environment=here).job.environment.items() >= here.items()
    assert not taken(user, environment=here).job.environment.keys() & here.keys()


def test_of_many_names_that_are_not_set_the_first_are_named(user: User, cluster: Cluster) -> None:
    names = ",".join(f"A{number:05}" for number in range(20_000))
    said = taken(user, options=[f"--export={names}"], environment={"A00000": "1"}).warnings
    assert len(said) == NAMED + 1
    assert said[0].startswith("command line: --export: A00001 is not set")
    assert said[-1].endswith(f"{20_000 - 1 - NAMED} more names are not set there either")


def test_a_blank_line_is_not_looked_at_again_for_a_step() -> None:
    step = needs._STEP.search("#!/bin/sh\n\n\n\t srun prog")
    assert step is not None
    assert step[0] == "\t srun "


def test_options_have_a_limit_of_characters(user: User, cluster: Cluster) -> None:
    value = "--comment=".ljust(MAX_SCRIPT, "x")
    assert taken(user, options=[value]).warnings
    said = refused(user, options=[value, "-H"])["sbatch"]
    wanted = "give long values in environment or files"
    assert said == [f"options have {MAX_SCRIPT + 2} characters and may have {MAX_SCRIPT}; {wanted}"]


def test_an_option_without_a_meaning_is_named_in_a_warning(user: User, cluster: Cluster) -> None:
    said = taken(user, "--mail-type=ALL", "--nice=5", options=["-p", "gpu"]).warnings
    assert said == (
        "line 2: --mail-type: has no meaning here and is left out",
        "line 3: --nice: has no meaning here and is left out",
        "command line: --partition: has no meaning here and is left out",
    )


def test_lines_behind_the_first_command_are_warned_of(user: User, cluster: Cluster) -> None:
    said = taken(user, "-n 2", "\necho\n#SBATCH -n 3\n#SBATCH -c 2")
    assert said.warnings == (
        "line 5: #SBATCH behind the first command is not read; move it up",
    )  # fmt: skip
    assert said.job.units == 2


def test_steps_of_several_tasks_are_warned_of_unless_one_node_has_all(
    user: User, cluster: Cluster
) -> None:
    assert "--nodes=1 keeps all on one" in taken(user, "-n4", "\nsrun prog").warnings[0]
    for lines in (["-n4 -N1", "\nsrun prog"], ["", "\nsrun prog"], ["-n4", "\necho srun prog"]):
        assert taken(user, *lines).warnings == ()


@pytest.mark.parametrize(
    ("lines", "field", "said"),
    [
        (["-t soon"], "sbatch", "line 2: --time: 'soon' is no time; write minutes, "),
        (["", "--mem=much"], "sbatch", "line 3: --mem: 'much' is no amount of memory; "),
        (["--mem=1G --mem-per-cpu=1G"], "sbatch", "line 2: --mem: goes without --mem-per-cpu"),
        (["-d before:1"], "sbatch", "line 2: --dependency: 'before:1' is no dependency; write "),
        (
            ["-d 'afterok:1,afterok:2?afterok:3'"],
            "sbatch",
            "line 2: --dependency: 'afterok:1,afterok:2?afterok:3' has commas and ?; write commas",
        ),
        (["-C 'a*2'"], "sbatch", "line 2: --constraint: 'a*2': nodes of one job are not counted"),
        (["--export-file=x"], "sbatch", "line 2: --export-file: is refused: the script would run"),
        (["--container=x"], "sbatch", "line 2: --container: is refused: the script would run"),
        (["-i in.txt"], "sbatch", "line 2: --input: a script has no input; write exec < FILE "),
        (["--help"], "sbatch", "line 2: --help: is refused: it submits nothing; "),
        (["--mem-per-gpu=1G --mem=2G"], "sbatch", "line 2: --mem: goes without --mem-per-gpu"),
        (
            ["-G1 --cpus-per-gpu=2 -c2"],
            "sbatch",
            "line 2: --cpus-per-gpu: goes without --cpus-per-task; remove one",
        ),
        (["-d afterok:99"], "dependencies", "line 2: --dependency: there is no job or array 99 "),
        (["-a 5-1"], "array", "line 2: --array: 5-1 runs backwards; write 1-5"),
        (["-c 99"], "cores", "line 2: --cpus-per-task: "),
        (["-G A100:1"], "allowed_types", "line 2: --gpus: 'A100' is no GPU type"),
        (
            [f"-G {'1,' * 600}1"],
            "sbatch",
            "line 2: --gpus: has 1201 characters and may have 1000; ",
        ),
        (
            ["-G 3 -N 4"],
            "sbatch",
            "line 2: --gpus: 3 GPUs are too few for 4 nodes; ask for 4, or for fewer nodes",
        ),
        (
            ["-n5 -N4 --ntasks-per-gpu=2"],
            "sbatch",
            "line 2: --ntasks-per-gpu: 3 GPUs are too few for 4 nodes",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_line(
    user: User, cluster: Cluster, lines: list[str], field: str, said: str
) -> None:
    fields = refused(user, *lines)
    assert fields[field][0].startswith(said), fields


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("text", "must be an object such as {script: text, options: [], ...}"),
        ({"scrip": ""}, "has no field 'scrip'; its fields are "),
        ({"script": 3}, "script must be text"),
        ({"script": "#!/bin/sh\n", "options": "-n 4"}, "options must be a list of texts"),
        ({"script": "#!/bin/sh\n", "options": ["run.sh"]}, "command line: 'run.sh' is no option"),
        ({"script": "#!/bin/sh\n", "environment": []}, "environment must be an object"),
    ],
)
def test_a_wrong_body_is_refused(user: User, cluster: Cluster, given: Any, said: str) -> None:
    with pytest.raises(JobInvalid) as raised:
        validate_job(user, {"sbatch": given})
    assert raised.value.fields["sbatch"][0].startswith(said)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"script": "echo\n"}, "script"),
        ({"script": "#!/bin/sh\n", "steps": 3}, "script"),
        ({"script": "#!/bin/sh\n", "folder": "relative"}, "folder"),
        ({"script": "#!/bin/sh\n", "output": "out.txt"}, "output"),
        ({"script": 3}, "script"),
        ({"command": "true", "begin": "+2h", "deadline": "+1h"}, "begin"),
    ],
)
def test_a_wrong_field_of_a_script_is_refused(
    user: User, cluster: Cluster, fields: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(JobInvalid) as raised:
        validate_job(user, {"name": "x", **fields})
    assert set(raised.value.fields) == {wrong}


def test_a_script_can_be_submitted_again_as_it_is(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-n 2 -o out.txt", arguments=["x"])).job
    again = job_clone(job, user).job
    ignored = {"name"}
    described = {n: v for n, v in job_data(job).items() if n not in ignored}
    assert described == {n: v for n, v in job_data(again).items() if n not in ignored}
    assert (again.script, again.command) == (job.script, ["x"])


def test_jobs_and_arrays_are_named_by_their_numbers(user: User, cluster: Cluster) -> None:
    one = job_submit(user, sbatch()).job
    array = job_submit(user, sbatch("-a 1-3")).job.array
    assert array is not None
    numbers = one.number, array.number
    waiting = job_submit(user, sbatch(f"-d afterok:{numbers[0]}:{numbers[1]}:{numbers[1]}_2")).job
    links = {(d.on_id, d.on_array_id) for d in waiting.dependency_links.all()}
    element = array.jobs.get(array_index=2)
    assert links == {(one.pk, None), (None, array.pk), (element.pk, None)}


def test_numbers_of_jobs_that_one_may_not_see_name_none(user: User, cluster: Cluster) -> None:
    stranger = a_user("eve", team=a_team("others"))
    number = job_submit(stranger, sbatch()).job.number
    assert "there is no job" in refused(user, f"-d afterok:{number}")["dependencies"][0]


def test_a_job_is_not_shown_to_policies_before_it_begins(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-b now+1hour")).job
    now = timezone.now()
    assert list(Rows(cluster, now).jobs) == []
    assert [j.pk for j in Rows(cluster, now + timedelta(hours=2)).jobs] == [job.pk]
    said = explain(job.state, job.waiting_code, job.waiting_detail, {}, now).sentence
    assert said.startswith("It does not begin before ")


def test_a_held_job_still_waits_for_its_beginning_and_a_release_of_the_wait_ends_it(
    user: User, cluster: Cluster
) -> None:
    job = job_release(job_hold(job_submit(user, sbatch("-b now+1hour")).job, user), user)
    assert (job.state, job.waiting_code, list(Rows(cluster, timezone.now()).jobs)) == (
        "queued", "begins_later", [],
    )  # fmt: skip


def test_a_beginning_in_the_past_is_none(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-b now")).job
    assert (job.begin_at, job.retry_at) == (None, None)


def test_nodes_with_older_agents_get_no_scripts(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch()).job
    assert Job.objects.get(pk=job.pk).needs_batch
    assert not any("batch" in node.features for node in Node.objects.all())


def test_a_singleton_waits_for_earlier_jobs_of_its_user_and_name(
    user: User, cluster: Cluster
) -> None:
    one = job_submit(user, sbatch("-J same")).job
    array = job_submit(user, sbatch("-J same -a 1-3")).job.array
    job_submit(user, sbatch("-J other"))
    team = user.teams.get()
    colleague = a_user("bea", team=team)
    job_submit(colleague, sbatch("-J same"))
    ended = job_submit(user, sbatch("-J same")).job
    Job.objects.filter(pk=ended.pk).update(state="completed")
    waiting = job_submit(user, sbatch("-J same -d singleton")).job
    links = waiting.dependency_links.values_list("on", "on_array", "condition")
    assert array is not None
    assert set(links) == {(one.pk, None, "afterany"), (None, array.pk, "afterany")}


def test_a_singleton_may_name_a_job_of_its_name_too(user: User, cluster: Cluster) -> None:
    one = job_submit(user, sbatch("-J same")).job
    waiting = job_submit(user, sbatch(f"-J same -d singleton,afterok:{one.number}")).job
    assert [link.condition for link in waiting.dependency_links.all()] == ["afterok"]


def test_a_singleton_behind_too_many_jobs_is_refused(
    user: User, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.submission.waits.MOST_OF_ONE_NAME", 1)
    for _ in range(2):
        job_submit(user, sbatch("-J same"))
    said = refused(user, "-J same -d singleton")["dependencies"][0]
    assert "singleton: waits for at most 1 jobs, and more are called same" in said


def test_numbers_behind_a_comma_wait_for_any_end(user: User, cluster: Cluster) -> None:
    one, two = (job_submit(user, sbatch()).job for _ in range(2))
    waiting = job_submit(user, sbatch(f"-d afterok:{one.number},{two.number}")).job
    links = {link.on_id: link.condition for link in waiting.dependency_links.all()}
    assert links == {one.pk: "afterok", two.pk: "afterany"}


def test_alternatives_of_labels_are_labels_of_the_nodes_that_satisfy_them(
    user: User, cluster: Cluster
) -> None:
    second = Node.objects.order_by("pk")[1]
    Node.objects.filter(pk=second.pk).update(labels=["slow", "a100"])
    job = job_submit(user, sbatch("-C 'v100|a100'")).job
    snapshot = observe(cluster.pk, timezone.now().timestamp(), 1).snapshot
    assert "a100|v100" in snapshot.jobs.columns.others["labels"][0]
    assert [node.id for node in snapshot.nodes if "a100|v100" in node.labels] == [str(second.pk)]
    assert job.labels == ["a100|v100"]


def test_alternatives_that_no_node_satisfies_are_warned_of(user: User, cluster: Cluster) -> None:
    said = taken(user, "-C 'x|y'").warnings
    assert said == ("labels: no node that fits has x or y yet; the job waits until one does",)
    Node.objects.update(labels=["y"])
    assert taken(user, "-C 'x|y'").warnings == ()


def test_tasks_that_share_gpus_are_counted_for_the_script(user: User, cluster: Cluster) -> None:
    shared = taken(user, "-n3 -N2 --gres=gpu:1").job.environment
    assert (shared["SLURM_NTASKS"], shared["SLURM_TASKS_PER_NODE"]) == ("3", "2,1")
    one_node = taken(user, "-n8 --gres=gpu:1").job.environment
    assert one_node["SLURM_TASKS_PER_NODE"] == "8"
    assert "SLURM_TASKS_PER_NODE" not in taken(user, "-n4 -G4").job.environment


def test_lines_for_other_systems_are_warned_of(user: User, cluster: Cluster) -> None:
    text = "\n#PBS -l nodes=2\n#PBS -q x\n#BSUB -n 3"
    said = taken(user, "-n 1", text).warnings
    assert said == (
        "line 4: #PBS lines are not read; write their options as #SBATCH lines",
        "line 6: #BSUB lines are not read; write their options as #SBATCH lines",
    )
    assert taken(user, "--ignore-pbs", text).warnings == ()


def test_a_value_may_stand_in_the_next_line(user: User, cluster: Cluster) -> None:
    assert taken(user, "--job-name", "two -n", "2").job.name == "two"


def test_a_job_of_several_parts_is_refused(user: User, cluster: Cluster) -> None:
    said = refused(user, "-n 1", "hetjob", "-n 2")["sbatch"]
    assert said == [
        "line 3: jobs of several parts are not run here; submit each part as a job of its own"
    ]


def test_a_deadline_is_that_of_the_job(user: User, cluster: Cluster) -> None:
    job = taken(user, "--deadline=now+2hours").job
    assert job.deadline_at is not None
    assert timedelta(hours=1) < job.deadline_at - timezone.now() <= timedelta(hours=2)


def test_options_for_a_forecast_are_told(user: User, cluster: Cluster) -> None:
    assert taken(user, "--test-only").test_only
    assert not taken(user).test_only


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["--exclusive"], {"gpus_min": 4, "units": 1}),
        (["--exclusive --gres=gpu:1"], {"gpus_min": 4, "units": 1}),
        (["--exclusive -G1 -N1"], {"gpus_min": 4, "nodes": 1}),
        (["--exclusive -N2"], {"gpus_min": 8, "units": 2, "nodes": 2}),
        (["--exclusive -N2 -n4 --gpus-per-node=1"], {"gpus_min": 8, "units": 4, "nodes": 2}),
        (["--exclusive -N1 -n3"], {"gpus_min": 4, "units": 1, "cores": 3.0}),
        (["--exclusive --ntasks-per-node=2"], {"gpus_min": 4, "units": 2}),
        (["--exclusive=user -G1"], {"gpus_min": 1}),
        (["--exclusive -n4"], {"gpus_min": 0, "units": 4}),
    ],
)
def test_an_exclusive_script_has_all_gpus_of_its_nodes(
    user: User, cluster: Cluster, lines: list[str], fields: dict[str, Any]
) -> None:
    job = taken(user, *lines).job
    assert job.exclusive
    assert {name: getattr(job, name) for name in fields} == fields


def test_an_exclusive_script_has_the_gpus_of_the_nodes_that_suit_it(
    user: User, cluster: Cluster
) -> None:
    big = a_gpu_type("A100")
    a_node(cluster, gpu_type=big, gpus=8, cores=16, memory_gb=64, labels=["big"])
    a_node(cluster, gpus=0, cores=16, memory_gb=64, labels=["plain"])
    assert taken(user, "--exclusive --gres=gpu:A100:1").job.gpus_min == 8
    assert taken(user, "--exclusive --gres=gpu:v100:1").job.gpus_min == 4
    assert taken(user, "--exclusive -C big").job.gpus_min == 8
    assert taken(user, "--exclusive -C plain").job.gpus_min == 0
    assert taken(user, "--exclusive -G1 -C a100").job.gpus_min == 8


def test_an_exclusive_script_keeps_its_gpus_where_nodes_have_different_numbers(
    user: User, cluster: Cluster
) -> None:
    a_node(cluster, gpus=8, cores=16, memory_gb=64)
    request = taken(user, "--exclusive -G1")
    assert request.job.gpus_min == 1
    assert request.warnings == (
        "line 2: --exclusive: gets the GPUs asked for; nodes have different numbers of them",
    )
    assert taken(user, "--exclusive").job.gpus_min == 0


def test_unhealthy_gpus_of_a_node_are_not_asked_for(user: User, cluster: Cluster) -> None:
    for node in Node.objects.all():
        Device.objects.filter(pk=node.devices.all()[0].pk).update(healthy=False)
    assert taken(user, "--exclusive").job.gpus_min == 3


def test_tasks_are_spread_evenly_where_the_gpus_are_not(user: User, cluster: Cluster) -> None:
    job = taken(user, "-G3 -N2").job
    assert job.environment["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert "SLURM_NTASKS" not in job.environment
    assert taken(user, "-G3 -N2 -n5").job.environment["SLURM_TASKS_PER_NODE"] == "3,2"


@pytest.fixture
def able_agents(cluster: Cluster) -> None:
    """Let the agents of all nodes know scripts and limits."""
    Node.objects.update(features=list(features_with("process")))


@pytest.mark.usefixtures("able_agents")
def test_uneven_gpus_start_on_two_nodes(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-G5 -N2 -t5")).job
    a_round(cluster)
    seats = job.assignments.order_by("rank").values_list("gpus", "units")
    assert sorted(seats) in ([(1, 1), (4, 4)], [(2, 2), (3, 3)])
    job.refresh_from_db()
    assert job.state == "starting"


@pytest.mark.usefixtures("able_agents")
def test_an_exclusive_script_starts_with_all_gpus_of_its_node(user: User, cluster: Cluster) -> None:
    jobs = [job_submit(user, sbatch("--exclusive -G1 -t5")).job for _ in range(3)]
    a_round(cluster)
    held = [list(job.assignments.values_list("gpus", flat=True)) for job in jobs]
    assert sorted(held) == [[], [4], [4]]


@pytest.mark.parametrize(
    ("lines", "labels", "types"),
    [
        (["-G1 -C v100"], [], ["V100"]),
        (["-G1 -C 'V100|2080ti'"], [], ["V100", "2080ti"]),
        (["-G1 -C 'v100&fast'"], ["fast"], ["V100"]),
        (["-C v100"], ["v100"], []),
        (["--gpus=2080ti:1 -C v100"], ["v100"], ["2080ti"]),
        (["-G1 -C 'v100|fast'"], ["fast|v100"], []),
    ],
)
def test_a_constraint_that_names_a_gpu_type_asks_for_the_type(
    user: User, cluster: Cluster, lines: list[str], labels: list[str], types: list[str]
) -> None:
    a_node(cluster, gpu_type=a_gpu_type(name="2080ti"), gpus=2, cores=16)
    job = taken(user, *lines).job
    assert (job.labels, sorted(job.allowed_types)) == (labels, sorted(types))


def test_a_label_with_the_name_of_a_gpu_type_stays_a_label(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpus=4, cores=16, labels=["v100"])
    job = taken(user, "-G1 -C v100").job
    assert (job.labels, job.allowed_types) == (["v100"], [])
