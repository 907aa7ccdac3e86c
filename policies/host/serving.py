"""`python -m policies serve`: a long-lived child that answers JSON lines, with warm kernels.

Request: {"id": ..., "policy": name, "parameters": {...}, "snapshot": form}. Answer: {"id": ...,
"plan": form}, or {"id": ..., "error": {"type": name, "message": text}}. The first line out is
{"ready": true}; only answers go to standard output; the process ends when its input does.
"""

import json
from collections.abc import Iterable
from typing import IO, Any

from foundation.child_processes.messages import write_message
from foundation.garbage import not_collected
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.host import registry

READY = {"ready": True}


def serve(requests: Iterable[str | bytes], answers: IO[str]) -> None:
    """Warm up, then answer until the requests end."""
    warm_up()
    write_message(answers, READY)
    for line in requests:
        write_message(answers, answer(line))


def answer(line: str | bytes) -> dict[str, Any]:
    """Return the answer to a request line; failures become error answers."""
    number: Any = None
    try:
        with not_collected():
            request = json.loads(line)
            number = request.get("id")
            policy = registry.make(request["policy"], request.get("parameters"))
            snapshot = snapshot_json.from_json(request.pop("snapshot"))
        plan: object = policy(snapshot)
        if not isinstance(plan, Plan):
            raise PolicyError(f"the policy returned {type(plan).__name__}, not a Plan")
        return {"id": number, "plan": plan_json.to_json(plan)}
    except Exception as error:
        # A policy may fail in any way: the caller is told, and the next request is answered.
        return _error(number, error)


def warm_up() -> None:
    """Compile or load the kernels: decide about a tiny snapshot."""
    device = {"id": "d", "memory_gb": 1}
    node = {"id": "n", "name": "n", "gpu_type": "t", "devices": [device], "power_w": [1, 2]}
    speed = {"gpu_type": "t", "gpus": 1, "steps_per_s": 1, "source": "measured"}
    snapshot = snapshot_json.from_json(
        {
            "version": 1,
            "cluster": "warm-up",
            "now_s": 0,
            "round_s": 1,
            "seed": 1,
            "nodes": [node],
            "kinds": [{"id": "k", "throughputs": [speed]}],
            "jobs": [{"id": "j", "kind": "k", "arrival_s": 0, "remaining_steps": 1}],
        }
    )
    registry.make(registry.DEFAULT)(snapshot)
    registry.make("randomized_greedy", {"iterations": 1})(snapshot)


def _error(number: Any, error: Exception) -> dict[str, Any]:
    """Return the answer for a failed request."""
    try:
        message = str(error)
    except Exception:  # an exception's own text may be broken as well
        message = "it cannot say what is wrong"
    # libraries have a MemoryError of their own
    name = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
    return {"id": number, "error": {"type": name, "message": message}}
