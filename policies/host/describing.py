"""`python -m policies.host.describing`: import a third party's policy and describe it.

It reads one line: {"name": ..., "value": "module:class", "parameters": {...} or null}. It writes
one line: {"schema": ..., "file": ..., "places_batch": ...}, or {"error": text, "parameter": true if
a parameter is wrong}. See `policies.host.third_parties`.
"""

import json
import os
from importlib.metadata import EntryPoint
from inspect import getsourcefile
from typing import Any

from foundation.child_processes.limits import half_of_memory, set_up_child
from foundation.child_processes.messages import reserve_pipes, write_message
from foundation.forms import cleaned
from policies.contract.policy import (
    PolicyError,
    PolicyParameterError,
    parameters_schema,
    places_batch,
)
from policies.host import registry


def main() -> None:
    """Answer one request, then exit at once, whatever threads or handlers the module left."""
    set_up_child(memory_bytes=half_of_memory())
    requests, answers = reserve_pipes()
    request = json.loads(requests.readline())
    entry = EntryPoint(request["name"], request["value"], registry.GROUP)
    write_message(answers, _answer(entry, request["parameters"]))
    os._exit(0)


def _answer(entry: EntryPoint, parameters: dict[str, object] | None) -> dict[str, Any]:
    """Return the answer about a policy, made with parameters if any are given."""
    try:
        policy = registry.imported(entry)
        if parameters is not None:
            registry.made(entry.name, policy, parameters)
        return {
            "schema": parameters_schema(policy),
            "file": _source_file(policy),
            "places_batch": places_batch(policy),
        }
    except PolicyError as error:
        return {"error": cleaned(str(error)), "parameter": isinstance(error, PolicyParameterError)}


def _source_file(policy: type) -> str:
    """Return the source file of a class; "" if it has none."""
    try:
        return getsourcefile(policy) or ""
    except (OSError, TypeError):  # made by no module with a file
        return ""


if __name__ == "__main__":
    main()
