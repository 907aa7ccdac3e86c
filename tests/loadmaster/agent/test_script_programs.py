"""Programs beside a script ask the server by the right of its launch: squeue, scancel, sbatch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from jobs.models import Assignment, Job
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.features import SHARED
from loadmaster.protocol import AssignmentState
from tests.builders import a_job, a_team, a_user
from tests.builders_agent import until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state, serialized
from tests.builders_agents import an_offer
from tests.builders_jobs import kept_output

pytestmark = pytest.mark.timeout(240)

Run = Callable[[str], str]


@pytest.fixture
def site(transactional_db: None, live_server: LiveServer, tmp_path: Path) -> Iterator[NodeSite]:
    def runtime(state_dir: Path) -> ProcessRuntime:
        server = {"url": live_server.url, "ca": "", "insecure": False}
        made = ProcessRuntime(state_dir / "runs", server=server)
        made.features = (SHARED,)
        return made

    with serialized(live_server):
        site = NodeSite(a_site_cluster(), tmp_path / "node", runtime=runtime)
        yield site
        site.leave()


@pytest.fixture
def run(site: NodeSite, tmp_path: Path) -> Run:
    """Run the text of a script as Ada's job number 7, and return its output and errors."""
    team = a_team("research")
    ada = a_user("ada", team=team)

    def run(text: str) -> str:
        job = a_job(
            site.cluster, user=ada, team=team, name="mine", number=7, script=f"#!/bin/sh\n{text}",
            command=[], batch=True, max_retries=0, gpus_min=0, gpus_max=0, folder=str(tmp_path),
        )  # fmt: skip
        launch = an_offer(site.node, job, gpus=0)
        ends = (AssignmentState.FAILED, AssignmentState.SUCCEEDED, AssignmentState.CANCELLED)
        until(lambda: any(is_state(launch, end) for end in ends), site.agent, within_s=120.0)
        until(lambda: site.agent.is_idle, site.agent)
        return said(launch)

    return run


def said(launch: Assignment) -> str:
    return (kept_output(launch) + kept_output(launch, "stderr")).decode()


def test_a_script_finds_itself_in_the_queue(run: Run) -> None:
    text = run(
        'squeue -h -j "$SLURM_JOB_ID" -o "%i %j %u"\nsqueue -h --me -o %T\nsqueue -j 99; echo $?\n'
        'scontrol -o show job "$SLURM_JOB_ID" | cut -d " " -f 1,2\n'
    )
    lines = text.splitlines()
    assert lines[0] == "7 mine ada"
    assert lines[1] in ("RUNNING", "CONFIGURING")
    assert lines[2:] == ["1", "JobId=7 JobName=mine", "squeue: error: Invalid job id specified"]


def test_a_script_submits_holds_and_cancels_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "next.sh").write_text("#!/bin/sh\ntrue\n")
    text = run(
        "next=$(sbatch --parsable -J next -d afterany:$SLURM_JOB_ID next.sh a 'b c')\n"
        "scontrol hold $next\nsqueue -h -j $next -o '%j %t %r'\nscontrol release $next\n"
        "many=$(sbatch --parsable -H -a 1-3 next.sh)\nscancel ${many}_2\n"
        "squeue -h -j $many -o %K\nscancel $many\nsqueue -h -j $many\n"
        "sbatch -J said next.sh\nsbatch -n 0 next.sh || echo refused\n"
    )
    held, elements, told, refused, *errors = text.splitlines()
    number = Job.objects.get(name="said").number
    assert held == "next PD JobHeldUser"
    assert elements == "1,3"
    assert told == f"Submitted batch job {number}"
    assert refused == "refused"
    assert any("--ntasks: '0' is no number" in line for line in errors)
    follower = Job.objects.get(name="next")
    assert follower.command == ["a", "b c"]
    assert [link.on.number for link in follower.dependency_links.all() if link.on] == [7]
    assert set(Job.objects.filter(array__isnull=False).values_list("state", flat=True)) == {
        "cancelled"
    }


def test_a_script_of_its_input_is_submitted(run: Run) -> None:
    run("printf '#!/bin/sh\\necho piped\\n' | sbatch\n")
    assert Job.objects.get(name="sbatch").script == "#!/bin/sh\necho piped\n"


def test_the_token_is_in_a_file_of_the_jobs_user_and_nowhere_else(run: Run) -> None:
    text = run(
        "cd $LOADMASTER_PROGRAMS\nstat -c %a server.json\n"
        'token=$(sed \'s/.*"token": "//; s/".*//\' server.json)\nenv | grep -c "$token"\n'
        "echo $token\n"
    )
    lines = text.splitlines()
    assert lines[:2] == ["600", "0"]
    assert set(lines[2]) == {"*"}


def test_a_script_signals_its_own_steps(run: Run) -> None:
    text = run(
        "srun sh -c 'trap \"echo told; exit 3\" USR1; echo > up; while :; do sleep 0.1; done' &\n"
        "until test -e up; do sleep 0.1; done\nscancel -s USR1 $SLURM_JOB_ID\nwait $!\necho $?\n"
        "scancel -s USR1 99 || echo refused\n"
    )
    assert text.splitlines()[:3] == ["told", "3", "refused"]


def test_words_that_scontrol_has_not_here_are_refused_by_name(run: Run) -> None:
    text = run(
        "scontrol update JobId=7 TimeLimit=5 || echo refused\nscontrol reboot n1 || echo refused\n"
    )
    refused, again, *errors = text.splitlines()
    assert (refused, again) == ("refused", "refused")
    assert "TimeLimit of a job stays as it was submitted; cancel 7" in errors[0]
    assert "'reboot n1' is not done here" in errors[1]


def test_a_script_looks_at_its_node_and_at_its_jobs_of_today(run: Run, site: NodeSite) -> None:
    text = run(
        "sinfo -h -o '%D %t %N'\nsinfo -h -o %R\nsacct -n -X -P -o jobid,jobname,state,user\n"
        "until sacct -j 7 -n -o jobid | grep -q batch; do sleep 0.2; done\n"
        "sacct -j 7 -n -P -o jobid\nsacct -n -u eve\nsacct -j 99 -n\n"
    )
    lines = text.splitlines()
    assert lines[0] in (f"1 mix {site.node.name}", f"1 alloc {site.node.name}")
    assert lines[1] == site.cluster.name
    assert lines[2:] == ["7|mine|RUNNING|ada", "7", "7.batch"]


def test_a_script_lets_another_start_by_its_own_start(run: Run, tmp_path: Path) -> None:
    (tmp_path / "next.sh").write_text("#!/bin/sh\ntrue\n")
    run("sbatch -J next -d after:$SLURM_JOB_ID+9 next.sh\nsqueue -h -n next -o %E\n")
    (link,) = Job.objects.get(name="next").dependency_links.all()
    assert (link.condition, link.delay.total_seconds()) == ("after", 540.0)
