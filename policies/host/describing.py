"""`python -m policies.host.describing PARENT`: import a third party's policy and describe it.

Standard input: {"name": ..., "value": "module:class", "parameters": {...} or null}. Standard
output: {"schema": ..., "file": ..., "places_batch": ...}, or {"error": text, "parameter": whether a
parameter is wrong}.
See `policies.host.third_parties`.
"""

import json
import os
import sys
from importlib.metadata import EntryPoint
from inspect import getsourcefile
from typing import Any

from policies.contract.forms import cleaned
from policies.contract.policy import (
    PolicyError,
    PolicyParameterError,
    parameters_schema,
    places_batch,
)
from policies.host import registry
from policies.host.lifetime import die_with, take_no_more_than_a_half
from policies.host.serving import pipes


def main() -> None:
    """Answer, then exit at once, whatever threads or handlers the module left."""
    die_with(int(sys.argv[1]))
    take_no_more_than_a_half()
    requests, answers = pipes()
    request = json.loads(requests.read())
    entry = EntryPoint(request["name"], request["value"], registry.GROUP)
    answers.write(json.dumps(_answer(entry, request["parameters"])))
    answers.flush()
    os._exit(0)


def _answer(entry: EntryPoint, parameters: dict[str, object] | None) -> dict[str, Any]:
    try:
        policy = registry.imported(entry)
        if parameters is not None:
            registry.made(entry.name, policy, parameters)
        return {
            "schema": parameters_schema(policy),
            "file": _file(policy),
            "places_batch": places_batch(policy),
        }
    except PolicyError as error:
        return {"error": cleaned(str(error)), "parameter": isinstance(error, PolicyParameterError)}


def _file(policy: type) -> str:
    try:
        return getsourcefile(policy) or ""
    except (OSError, TypeError):  # made by no module with a file
        return ""


if __name__ == "__main__":
    main()
