"""The published schema and the golden payloads: what everything outside of this repository rests
on.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadmaster.agent.schema import PAYLOADS, agent_schema
from loadmaster.wire import WireError, from_json, to_json

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
BY_NAME: dict[str, type[Any]] = {payload.__name__: payload for payload in PAYLOADS}
FILES = sorted(GOLDEN.glob("*.json"))


def validator(payload: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**agent_schema(), "$ref": f"#/$defs/{payload}"})


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((ROOT / "loadmaster/schemas/agent.schema.json").read_text())
    assert published == json.loads(json.dumps(agent_schema())), (
        "run python -m loadmaster.agent.schema and say why in an ADR"
    )
    jsonschema.Draft202012Validator.check_schema(published)


def test_every_payload_has_a_golden_file() -> None:
    assert {path.stem for path in FILES} == set(BY_NAME)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_payload_reads_and_writes_back_unchanged_and_fits_the_schema(path: Path) -> None:
    data = json.loads(path.read_text())
    validator(path.stem).validate(data)
    assert to_json(from_json(BY_NAME[path.stem], data)) == data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_schema_and_code_refuse_a_surprise_alike(path: Path) -> None:
    data = {**json.loads(path.read_text()), "surprise": 1}
    assert not validator(path.stem).is_valid(data)
    with pytest.raises(WireError, match="surprise"):
        from_json(BY_NAME[path.stem], data)


@pytest.mark.parametrize("payload", sorted(BY_NAME))
def test_schema_and_code_agree_on_what_is_required(payload: str) -> None:
    with_nothing: dict[str, Any] = {}
    is_valid = validator(payload).is_valid(with_nothing)
    if is_valid:
        from_json(BY_NAME[payload], with_nothing)
    else:
        with pytest.raises(WireError, match="missing"):
            from_json(BY_NAME[payload], with_nothing)
