"""Scripts for Slurm: options and lines that are refused or warned of."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from jobs.submission.sbatch import needs
from jobs.submission.validation import JobInvalid, validate_job
from loadmaster.slurm.options.reading import MAX_SCRIPT
from tests.builders_sbatch import refused, taken


def test_search_for_steps_skips_blank_lines() -> None:
    step = needs.SRUN_LINE.search("#!/bin/sh\n\n\n\t srun prog")
    assert step is not None
    assert step[0] == "\t srun "


def test_options_have_a_limit_of_characters(user: User, cluster: Cluster) -> None:
    value = "--comment=".ljust(MAX_SCRIPT, "x")
    assert taken(user, options=[value]).warnings
    said = refused(user, options=[value, "-H"])["sbatch"]
    wanted = "give long values in environment or files"
    assert said == [f"options have {MAX_SCRIPT + 2} characters and may have {MAX_SCRIPT}; {wanted}"]


def test_option_without_meaning_is_named_in_a_warning(user: User, cluster: Cluster) -> None:
    said = taken(user, "--mail-type=ALL", "--nice=5", options=["-p", "gpu"]).warnings
    assert said == (
        "line 2: --mail-type: has no meaning here and is left out",
        "line 3: --nice: has no meaning here and is left out",
        "command line: --partition: has no meaning here and is left out",
    )


def test_lines_behind_the_first_command_are_warned_of(user: User, cluster: Cluster) -> None:
    said = taken(user, "-n 2", "\necho\n#SBATCH -n 3\n#SBATCH -c 2")
    assert said.warnings == ("line 5: #SBATCH behind the first command is not read; move it up",)
    assert said.job.units == 2


def test_steps_over_nodes_are_warned_of(user: User, cluster: Cluster) -> None:
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
def test_bad_value_is_named_with_its_line(
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
def test_wrong_body_is_refused(user: User, cluster: Cluster, given: Any, said: str) -> None:
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
def test_wrong_field_of_a_script_is_refused(
    user: User, cluster: Cluster, fields: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(JobInvalid) as raised:
        validate_job(user, {"name": "x", **fields})
    assert set(raised.value.fields) == {wrong}


def test_lines_for_other_systems_are_warned_of(user: User, cluster: Cluster) -> None:
    text = "\n#PBS -l nodes=2\n#PBS -q x\n#BSUB -n 3"
    said = taken(user, "-n 1", text).warnings
    assert said == (
        "line 4: #PBS lines are not read; write their options as #SBATCH lines",
        "line 6: #BSUB lines are not read; write their options as #SBATCH lines",
    )
    assert taken(user, "--ignore-pbs", text).warnings == ()


def test_job_of_several_parts_is_refused(user: User, cluster: Cluster) -> None:
    said = refused(user, "-n 1", "hetjob", "-n 2")["sbatch"]
    assert said == [
        "line 3: jobs of several parts are not run here; submit each part as a job of its own"
    ]
