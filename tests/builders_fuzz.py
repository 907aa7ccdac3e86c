"""Requests made from the OpenAPI document, right and wrong ones, by callers of every role, against
rows that exist.

schemathesis draws the requests; what makes them reach further than the first check is done here:
most get ids, names, fences and epochs of things that are there.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
REQUESTS = int(os.environ.get("LOADMASTER_FUZZ_REQUESTS", "4000"))
SEED = int(os.environ.get("LOADMASTER_FUZZ_SEED", "1"))
AT_ONCE = 60
"""Requests that are drawn for an operation before its turn is over."""

BEYOND = 6
"""Every so many turns also what is not for the caller is called."""

BEYOND_AT_ONCE = 10
"""Requests that are drawn then for such an operation: most are refused before they are read."""


@dataclass(slots=True)
class Caller:
    """Somebody who calls. `headers` are made before every call, for some calls end a token;
    `reach`: whether a path is for them.
    """

    headers: Callable[[str], dict[str, str]]
    reach: Callable[[str], bool]
    answers: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Fuzz:
    """Requests of one caller, spread evenly over the operations within their reach, and a few
    beyond it.

    `path_names` gives values of path parameters that exist, `body_names` those of fields in bodies
    and addresses. `problems` holds the first answer of each operation that broke a check, with how
    to repeat it.
    """

    document: Any
    caller: Caller
    path_names: Callable[[str], dict[str, Any]]
    body_names: Callable[[str], dict[str, Any]]
    base_url: str = ""
    problems: dict[str, str] = field(default_factory=dict)

    def run(self, requests: int, number: int) -> int:
        """Make them, wrong ones every third turn; how many were made."""
        operations = [result.ok() for result in self.document.get_all_operations()]
        mine = sum(self.caller.reach(operation.path) for operation in operations) or len(operations)
        made, turn = 0, 0
        each = max(1, min(AT_ONCE, requests // (2 * mine)))
        while made < requests:
            for operation in operations:
                is_mine = self.caller.reach(operation.path)
                if is_mine or turn % BEYOND == BEYOND - 1:
                    mode = GenerationMode.NEGATIVE if turn % 3 == 2 else GenerationMode.POSITIVE
                    examples = each if is_mine else min(each, BEYOND_AT_ONCE)
                    made += self._exercise(operation, mode, examples, number + turn)
            turn += 1
        return made

    def _exercise(self, operation: Any, mode: GenerationMode, examples: int, number: int) -> int:
        made = 0

        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=_strategy(operation, mode), noise=st.integers(0, 2**16))
        def send(case: Any, noise: int) -> None:
            nonlocal made
            self._put_names(case, operation.path, random.Random(noise))
            made += 1
            self._call(case, operation)

        send()
        return made

    def _call(self, case: Any, operation: Any) -> None:
        # Patient: how long a server takes on a machine with much other work is no fault that this
        # looks for.
        more = {"base_url": self.base_url, "timeout": 60.0} if self.base_url else {}
        headers = self.caller.headers(operation.path)
        answer = case.call(headers=headers, **more)
        self.caller.answers[f"{answer.status_code}"] += 1
        try:
            case.validate_response(answer, checks=CHECKS, headers=headers)
        except FailureGroup as failure:
            said = "\n".join(str(each) for each in failure.exceptions)
            self.problems.setdefault(
                f"{operation.label} {answer.status_code}",
                f"{said}\n{case.as_curl_command(headers)}"[:3000],
            )

    def _put_names(self, case: Any, path: str, noise: random.Random) -> None:
        if case.path_parameters and noise.random() < 0.8:
            known = self.path_names(path)
            case.path_parameters.update(
                {n: v for n, v in known.items() if n in case.path_parameters}
            )
        names = self.body_names(path) if noise.random() < 0.7 else {}
        for place in (case.query, case.body):
            if isinstance(place, dict):
                place.update({name: value for name, value in names.items() if name in place})


def _strategy(operation: Any, mode: GenerationMode) -> Any:
    """Wrong requests where the operation takes anything that can be wrong."""
    takes = bool(
        operation.body or operation.query or operation.path_parameters or operation.headers
    )
    return operation.as_strategy(generation_mode=mode if takes else GenerationMode.POSITIVE)
