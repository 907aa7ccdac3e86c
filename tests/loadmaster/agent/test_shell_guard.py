"""The guard in the shell, for images without Python, takes the same orders as the other one."""

import json
import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as chosen
from hypothesis import strategies as st

from loadmaster.agent.guarding import guard, guard_orders

SCRIPT = (Path(guard.__file__).parent / "guard.sh").read_text()
ORDERS = SCRIPT[SCRIPT.index("never=") : SCRIPT.index("\nclock\nlook\n")]
"""Its functions, without what starts and signals processes."""

BOOT = "this-boot"
Orders = tuple[str | None, float, float]

times = st.integers(0, 3000).map(lambda hundredths: hundredths / 100)
perhaps = st.none() | times


def by_shell(folder: Path, now_s: float, walltime_s: float | None, end_s: float | None) -> Orders:
    """Stopper of the job, and times of its SIGTERM and SIGKILL, if the guard looks at `now_s`."""
    set_up = f"orders={folder} boot={BOOT} grace=1000 ends={hundredths(end_s, '-')}"
    over = f'[ "{hundredths(walltime_s, "-")}" = - ] || over={hundredths(walltime_s, "-")}'
    show = 'look\necho "$by $term_at $kill_at"'
    program = f"{set_up}\n{ORDERS}\n{over}\nnow={hundredths(now_s, '')}\n{show}"
    done = subprocess.run(["sh", "-u"], input=program, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    by, term, kill = done.stdout.removesuffix("\n").split(" ")
    never = 999_999_999_999_999
    at = [math.inf if int(text) == never else int(text) / 100 for text in (term, kill)]
    return by or None, at[0], at[1]


def hundredths(seconds: float | None, none: str) -> str:
    return none if seconds is None else str(round(100 * seconds))


def by_python(folder: Path, now_s: float, walltime_s: float | None, end_s: float | None) -> Orders:
    lease = guard_orders.Lease(folder / "lease.json", BOOT)
    stopping = guard_orders.Stopping(folder, lease, grace_s=10.0)
    limits = {"walltime": walltime_s, "deadline": end_s}
    stopping.limits_s = {name: at_s for name, at_s in limits.items() if at_s is not None}
    stopping.look(now_s)
    return stopping.by, round(stopping.term_at_s, 2), round(stopping.kill_at_s, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


@chosen(max_examples=60)
@example(10.0, 20.0, "another", None, None, None)  # each rule at least once in every run
@example(25.0, 20.0, BOOT, None, None, None)
@example(10.0, 20.0, BOOT, 5.0, None, None)
@example(10.0, 20.0, BOOT, None, 5.0, None)
@example(10.0, 20.0, BOOT, None, None, ("cancel", 5.0, 15.0))
@given(
    now_s=times,
    lease_s=times,
    boot=st.sampled_from([BOOT, BOOT, "another"]),
    walltime_s=perhaps,
    end_s=perhaps,
    stop=st.none() | st.tuples(st.sampled_from(["cancel", "preempt"]), times, times),
)
def test_both_guards_stop_a_job_at_the_same_times(
    folder: Path,
    now_s: float,
    lease_s: float,
    boot: str,
    walltime_s: float | None,
    end_s: float | None,
    stop: tuple[str, float, float] | None,
) -> None:
    (folder / "lease.json").write_text(json.dumps({"deadline_s": lease_s, "boot_id": boot}))
    (folder / "stop.json").unlink(missing_ok=True)
    if stop:
        by, term_s, kill_s = stop
        order = {"by": by, "term_at_s": term_s, "kill_at_s": kill_s}
        (folder / "stop.json").write_text(json.dumps(order))
    now = folder, now_s, walltime_s, end_s
    shell, python = by_shell(*now), by_python(*now)
    if boot == BOOT:
        assert shell == python
    else:  # there is no lease, and neither guard starts the job
        assert max(shell[1], python[1]) <= now_s
