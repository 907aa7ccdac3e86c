"""Why a job can run nowhere, as far as the nodes of its cluster go."""

from __future__ import annotations

from policies.contract.capabilities import runtime_label, runtime_of
from policies.contract.plan import WaitCode
from policies.contract.snapshot import Snapshot
from policies.placement.eligibility import admits

MOST_NAMED = 8
"""Jobs or nodes in the way that are named at most; a queue of thousands would repeat all of them
for each.
"""


def why_impossible(snapshot: Snapshot, row: int) -> tuple[WaitCode, tuple[str, ...]]:
    """No throughput known; or no node serves training; or none of the allowed types, or of those
    with the runtime; or none is large enough.
    """
    columns = snapshot.jobs.columns
    others, counts = columns.others, columns.counts
    types = set(others["allowed_types"][row]) or set(snapshot.types)
    gpus = range(int(counts["gpus_min"][row]), int(counts["gpus_max"][row]) + 1)
    kind = snapshot.kinds[snapshot.kind_index[columns.kinds[row]]]
    known = {
        t.gpu_type
        for t in kind.throughputs
        if t.gpus in gpus and t.steps_per_s > 0.0 and t.gpu_type in types
    }
    of_type = [n for n in snapshot.nodes if n.gpu_type in types]
    if not any(n.takes_training for n in snapshot.nodes):
        return WaitCode.NODES_UNAVAILABLE, tuple(n.id for n in of_type)[:MOST_NAMED]
    if of_type and not any(n.takes_training for n in of_type):
        return WaitCode.TYPES_UNAVAILABLE, tuple(n.id for n in of_type)[:MOST_NAMED]
    labels = frozenset(others["labels"][row])
    offering = [n for n in of_type if runtime_label(runtime_of(labels)) in n.labels]
    if of_type and runtime_of(labels) and not any(n.takes_training for n in offering):
        return WaitCode.RUNTIME_UNAVAILABLE, tuple(n.id for n in offering)[:MOST_NAMED]
    large = [
        n
        for n in of_type
        if len(n.devices) >= gpus.start
        and admits((frozenset(types), labels), n.gpu_type, frozenset(n.labels))
    ]
    if not large:
        return WaitCode.NO_NODE_FITS, ()
    if not known & {n.gpu_type for n in large if n.takes_training}:
        return WaitCode.NO_THROUGHPUT, ()
    return WaitCode.NO_NODE_FITS, ()
