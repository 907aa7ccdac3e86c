"""Variables of scripts for Slurm: exported ones, and those that repeat options."""

from django.contrib.auth.models import User

from clusters.models import Cluster
from loadmaster.slurm.options.reading import NAMED
from tests.builders_sbatch import taken


def test_variables_repeat_what_the_options_say(user: User, cluster: Cluster) -> None:
    job = taken(user, "-n 2 -c 4 --mem-per-cpu=1G", host="laptop").job
    assert job.environment == {
        "SLURM_NTASKS": "2",
        "SLURM_NPROCS": "2",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_MEM_PER_CPU": "1024",
        "SLURM_SUBMIT_DIR": "/home/ada",
        "SLURM_SUBMIT_HOST": "laptop",
    }


def test_only_exported_variables_are_taken(user: User, cluster: Cluster) -> None:
    here = {"A": "1", "B": "2"}
    some = taken(user, "--export=A,C=3,D", environment=here)
    assert {n: v for n, v in some.job.environment.items() if n != "SLURM_SUBMIT_DIR"} == {
        "A": "1",
        "C": "3",
    }
    assert some.warnings == ("line 2: --export: D is not set where it was submitted, and left out",)
    assert taken(user, "--export=ALL", environment=here).job.environment.items() >= here.items()
    assert not taken(user, environment=here).job.environment.keys() & here.keys()


def test_of_many_unset_names_the_first_are_named(user: User, cluster: Cluster) -> None:
    names = ",".join(f"A{number:05}" for number in range(20_000))
    said = taken(user, options=[f"--export={names}"], environment={"A00000": "1"}).warnings
    assert len(said) == NAMED + 1
    assert said[0].startswith("command line: --export: A00001 is not set")
    assert said[-1].endswith(f"{20_000 - 1 - NAMED} more names are not set there either")


def test_variables_count_tasks_that_share_gpus(user: User, cluster: Cluster) -> None:
    shared = taken(user, "-n3 -N2 --gres=gpu:1").job.environment
    assert (shared["SLURM_NTASKS"], shared["SLURM_TASKS_PER_NODE"]) == ("3", "2,1")
    one_node = taken(user, "-n8 --gres=gpu:1").job.environment
    assert one_node["SLURM_TASKS_PER_NODE"] == "8"
    assert "SLURM_TASKS_PER_NODE" not in taken(user, "-n4 -G4").job.environment
