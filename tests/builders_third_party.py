"""A package of a third party as pip leaves it behind: modules, and metadata with entry points. Most
of its policies are broken.
"""

from collections.abc import Mapping
from pathlib import Path

HEAD = """
from __future__ import annotations
import os, sys, time
from dataclasses import dataclass, field
from loadmaster.policy_api import Placement, Plan, PlanStatus, RankPlacement, Snapshot
from loadmaster.policy_api import WaitCode, Waiting, parameter

def all_wait(snapshot, **more):
    waiting = tuple(Waiting(j.id, WaitCode.NO_CAPACITY) for j in snapshot.jobs)
    return Plan("idle", PlanStatus.HEURISTIC, (), waiting, **more)

@dataclass(frozen=True)
class {name}:
    '''{doc}'''
{fields}
    def __call__(self, snapshot):
        {body}
"""

BODIES: Mapping[str, str] = {
    "works": "return all_wait(snapshot, message=f'patience {self.patience}')",
    "raises": "raise ValueError('no idea')",
    "raises_nul": "raise ValueError('no\\0 idea \\ud800')",
    "raises_unsayable": "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})",
    "exits": "sys.exit(3)",
    "returns_nothing": "return None",
    "returns_a_number": "return 7",
    "returns_no_placements": "return Plan('x', PlanStatus.HEURISTIC, (1, 2))",
    "returns_nan": "return all_wait(snapshot, objective=float('nan'))",
    "returns_objects": "return all_wait(snapshot, memory={'me': self})",
    "returns_a_knot": "knot = {}; knot['knot'] = knot; return all_wait(snapshot, memory=knot)",
    "returns_nul": "return all_wait(snapshot, message='a\\0b')",
    "remembers_half_a_character": "return all_wait(snapshot, memory={'\\ud800': 1})",
    "talks_too_much": "return all_wait(snapshot, message='x' * 20_000)",
    "prints": (
        "print('garble'); os.write(1, b'garble\\n'); os.system('echo garble'); sys.stdin.read();"
        " return all_wait(snapshot)"
    ),
    "runs_forever": "\n        import time\n        while True: time.sleep(60)",
    "wants_all_memory": "import numpy; return [numpy.zeros(1 << 30, 'u1') for _ in range(1 << 24)]",
    "gives_a_gpu_twice": (
        "n = snapshot.nodes[0]; s = (RankPlacement(n.id, (n.devices[0].id,)),); "
        "return Plan('x', PlanStatus.HEURISTIC, tuple(Placement(j.id, s) for j in snapshot.jobs))"
    ),
    "ends_after_the_calendar": (
        "n = snapshot.nodes[0]; j, *rest = snapshot.jobs; s = (RankPlacement(n.id,"
        " (n.devices[0].id,)),); return Plan('x', PlanStatus.HEURISTIC, (Placement(j.id, s,"
        " until_s=1e300),), tuple(Waiting(w.id, WaitCode.NO_CAPACITY) for w in rest))"
    ),
    "costs_more_than_there_is": (
        "n = snapshot.nodes[0]; j, *rest = snapshot.jobs; s = (RankPlacement(n.id,"
        " (n.devices[0].id,)),); return Plan('x', PlanStatus.HEURISTIC, (Placement(j.id, s,"
        " predicted_energy_cost=1e300),), tuple(Waiting(w.id, WaitCode.NO_CAPACITY) for w in rest))"
    ),
    "tells_its_limit": (
        "import resource; return all_wait(snapshot,"
        " message=str(resource.getrlimit(resource.RLIMIT_DATA)[0]))"
    ),
}
"""Policies that can be loaded, by name: what their `__call__` does."""

PATIENCE = "    patience: float = parameter(1.5, meaning='how long', minimum=0.0)"

CANNOT_BE_LOADED: Mapping[str, str] = {
    "import_fails": "import nobodys_module",
    "import_exits": "import sys\nsys.exit(1)",
    "does_not_parse": "def (:",
    "has_no_class": "Policy = 3",
    "may_change": (
        "from dataclasses import dataclass\n@dataclass\nclass Policy:\n    def __call__(self, s):"
        " pass"
    ),
    "cannot_be_called": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Policy:\n   "
        " '''Nothing.'''"
    ),
    "takes_a_list": HEAD.format(
        name="Policy",
        doc="x",
        fields="    a: list = field(default_factory=list, metadata={'description': 'x'})",
        body="pass",
    ),
}
"""Policies that cannot, by name: the module that has the class `Policy`."""

CANNOT_BE_MADE: Mapping[str, str] = {
    "needs_more": HEAD.format(
        name="Policy", doc="Wants a field that is no parameter.", fields="    a: int", body="pass"
    ),
    "refuses_itself": HEAD.format(
        name="Policy",
        doc="Fails when it is made.",
        fields="    def __post_init__(self): raise OSError('no licence')",
        body="pass",
    ),
}

PLACES_BATCH = """
from dataclasses import dataclass, replace
from typing import ClassVar
from policies.batch.backfilling import Backfilling

@dataclass(frozen=True)
class Policy:
    '''It decides about batch jobs, too.'''
    places_batch: ClassVar[bool] = True

    def __call__(self, snapshot):
        seen = sum(job.batch for job in snapshot.jobs)
        return replace(Backfilling()(snapshot), message=f'{seen} batch jobs')
"""
"""The module of a policy that places batch jobs, and says how many it was shown."""

SPOILS_SEATS = """
from dataclasses import dataclass, replace
from policies.baselines.fifo import Fifo

@dataclass(frozen=True)
class Policy:
    '''It gives every second start a node that is not there, in three of four rounds.'''

    def __call__(self, snapshot):
        plan = Fifo()(snapshot)
        running = {job.id for job in snapshot.jobs if job.running}
        placements = list(plan.placements)
        starts = [i for i, p in enumerate(placements) if p.job not in running]
        for i in starts[::2] if int(snapshot.now_s) % 4 else ():
            seats = tuple(replace(seat, node='nowhere') for seat in placements[i].ranks)
            placements[i] = replace(placements[i], ranks=seats)
        return replace(plan, placements=tuple(placements))
"""
"""The module of a policy of whose seats some are bad."""

NEVER_IMPORTED = "import time\nwhile True: time.sleep(60)"
"""The module of a policy whose import never ends."""


def a_third_party(folder: Path, *names: str) -> Path:
    """The folder as one to put on Python's path, with these policies or all."""
    modules = {
        name: HEAD.format(name="Policy", doc=f"It {name}.", fields=PATIENCE, body=body)
        for name, body in BODIES.items()
    }
    known = {**modules, **CANNOT_BE_LOADED, **CANNOT_BE_MADE}
    return a_package(folder, {name: known[name] for name in names or known})


def a_package(folder: Path, modules: Mapping[str, str]) -> Path:
    """The folder with a policy in each of these modules, given by its text."""
    for name, text in modules.items():
        (folder / f"third_{name}.py").write_text(text)
    info = folder / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = third_{name}:Policy" for name in modules)
    (info / "entry_points.txt").write_text(f"[loadmaster.policies]\n{lines}\n")
    return folder
