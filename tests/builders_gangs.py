"""Builders of gangs: ranks as threads of this process, and ranks as processes, as agents would
start them.
"""

import json
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.training.gangs.agreement import FailureHandler, Gang, GangBroken, LeftEarlyError
from loadmaster.training.gangs.connection import Credentials
from loadmaster.training.gangs.lead import Lead
from loadmaster.training.gangs.member import Member
from tests.builders_training import Launches, end_of

JOURNALS = "TORCH_JOB_JOURNALS"
"""Where `tests.torch_gang_job` keeps a journal, if it is to."""

TORCH_JOB = "tests.torch_gang_job"
"""The module of a job that trains by PyTorch, and says in the end what it has learned."""

GANG_TOKEN = "the token of the launch"
MEET_S = 20.0

# Steps in lockstep, as by a collective operation: each rank sends its number to the other and waits
# for that of the other. A rank that is gone makes the other one fail (`ConnectionError`), or, where
# `patient` is set, wait for ever.
GANG_JOB = """
import json, os, socket, sys, time
from pathlib import Path
import loadmaster.training

rank, patient = int(os.environ["RANK"]), bool(os.environ.get("PATIENT"))
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(where)
    other, _ = server.accept()
else:
    for _ in range(600):
        try:
            other = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.05)
done = []

def exchange(number):
    try:
        return swap(number)
    except ConnectionError:  # whatever of the two met it: a write may fail before a read ends
        if patient:
            time.sleep(3600)
        raise

def swap(number):
    other.sendall(b"%8d" % number)
    theirs = b""
    while len(theirs) < 8:
        piece = other.recv(8 - len(theirs))
        if not piece:
            raise ConnectionError("the other rank is gone")
        theirs += piece
    return int(theirs)

def save(path):
    assert rank == 0, "rank 0 alone writes checkpoints"
    path.write_text(json.dumps(done))

def load(path):
    done[:] = json.loads(path.read_text())

def train(step):
    {in_step}

for batch in loadmaster.training.steps(range(1000), save=save, load=load):
    train(len(done))
    assert exchange(len(done)) == len(done), "the ranks are not in the same step"
    done.append(batch)
Path(sys.argv[1]).write_text(json.dumps(done))
"""


def gang_job(in_step: str = "time.sleep(0.01)") -> str:
    """The script of a rank, with what it does in a step."""
    return GANG_JOB.replace("{in_step}", in_step)


def free_port() -> int:
    """A port that nothing listens on now, nor on its neighbour, as a gang needs two; none that a
    connection could be given.
    """
    while not (
        _is_free(port := random.SystemRandom().randrange(20_000, 32_000)) and _is_free(port + 1)
    ):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class LostError(Exception):
    """A rank is gone in the middle of a step."""


@dataclass
class Ended:
    """How a rank of threads ended: after how many steps, why, and what was told of a fall."""

    step: int = -1
    why: str = ""
    fell: list[str] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)


@dataclass
class Threads:
    """Ranks as threads: `train(rank, step)` is a step, `wish(rank, step)` a reason to end at a
    boundary.
    """

    size: int
    train: Callable[[int, int], object] = lambda rank, step: None
    wish: Callable[[int, int], str | None] = lambda rank, step: None
    begin: int = 0
    total: int = 10_000
    stuck_s: float = 5.0
    leaving: Callable[[int], str | None] = lambda rank: None
    meet_s: float = MEET_S

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.ended = [Ended() for _ in range(self.size)]
        self.gangs: dict[int, Gang] = {}

    def rank(self, rank: int) -> Gang:
        """The rank's place in the gang."""
        ended = self.ended[rank]
        credentials = Credentials(GANG_TOKEN, self.size, 1)
        on_failure = FailureHandler(ended.fell.append, ended.forced.append, self.stuck_s, 0.1)
        if rank == 0:
            return Lead(self.address, credentials, on_failure, self.meet_s)
        return Member(self.address, credentials, rank, on_failure, self.meet_s)

    def run(self, ranks: Sequence[int] | None = None) -> list[Ended]:
        """Let the ranks (all, unless some are named) train to their end."""
        with self.running(ranks):
            pass
        return self.ended

    @contextmanager
    def running(self, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """The ranks train meanwhile; at the end they are waited for."""
        threads = [
            threading.Thread(target=self._run, args=(rank,), daemon=True)
            for rank in ranks or range(self.size)
        ]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive(), "a rank hangs"

    def _run(self, rank: int) -> None:
        ended = self.ended[rank]
        try:
            gang = self.gangs[rank] = self.rank(rank)
            gang.meet(lambda: self.leaving(rank), None)
            gang.begin(self.begin)
            ended.step = self.begin
            while ended.step < self.total:
                wish = self.wish(rank, ended.step)
                if why := gang.pass_boundary(
                    ended.step, wish if wish and gang.heeds(wish) else None
                ):
                    ended.why = why
                    break
                self.train(rank, ended.step)
                ended.step += 1
            gang.part(ended.step, ended.step)
        except LostError:
            ended.why = "lost"
        except GangBroken as broken:
            ended.why = f"broken: {broken.reason}"
        except LeftEarlyError as early:
            ended.why = f"early: {early.reason}"


@dataclass
class GangLaunches:
    """Launches of a job of two ranks in processes of their own, each with a run folder, over one
    folder of checkpoints.

    With `blind` rank 1 has that folder instead.
    """

    root: Path
    steps: int = 60
    environ: dict[str, str] = field(default_factory=dict)
    blind: Path | None = None

    def __post_init__(self) -> None:
        self.ranks = [Launches(self.root / f"rank-{rank}", self.steps) for rank in range(2)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, **environ: str) -> list[subprocess.Popen[bytes]]:
        """The next launch of both ranks."""
        return self._start(("-c", script), environ)

    def start_module(self, module: str, **environ: str) -> list[subprocess.Popen[bytes]]:
        """The same of a module that is told where to write its result."""
        return self._start(("-m", module), environ)

    def _start(
        self, command: tuple[str, ...], environ: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        port = free_port()
        self.processes = [
            launches.start(
                *command, str(self.result(rank)), **{**self._environ(rank, port), **environ}
            )
            for rank, launches in enumerate(self.ranks)
        ]
        return self.processes

    def _environ(self, rank: int, port: int) -> dict[str, str]:
        given = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        own = {"LOADMASTER_RANK": str(rank), "LOADMASTER_WORLD_SIZE": "2"}
        folder = self.blind if rank and self.blind else self.ranks[0].checkpoints
        place = {"LOADMASTER_CHECKPOINT_DIR": str(folder)}
        gang = {"LOADMASTER_GANG": f"127.0.0.1:{port + 1}", "LOADMASTER_GANG_TOKEN": "secret"}
        return {**given, **own, **place, **gang, **self.environ}

    def result(self, rank: int) -> Path:
        """Where a rank writes what it did, once the job is done."""
        return self.root / f"result-{rank}.json"

    def done(self) -> list[list[int]]:
        """What both ranks did, step by step."""
        return [json.loads(self.result(rank).read_text()) for rank in range(2)]


def learned_undisturbed(folder: Path, steps: int) -> Any:
    """What two ranks of `TORCH_JOB` learn when nobody disturbs them and no Loadmaster is there."""
    gang = GangLaunches(folder, steps, {"GLOO_SOCKET_IFNAME": "lo"})
    ends = [end_of(process) for process in gang.start_module(TORCH_JOB)]
    assert [code for code, _ in ends] == [0, 0], ends
    return json.loads(gang.result(0).read_text())
