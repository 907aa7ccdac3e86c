"""JSON Schema of the agent protocol; `python -m loadmaster.agent.schema` prints it."""

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from foundation.forms import FormSchema
from loadmaster import protocol, samples
from loadmaster.wire import form

PAYLOADS: tuple[type[Any], ...] = (
    protocol.Registration,
    protocol.Registered,
    protocol.SessionRequest,
    protocol.Session,
    protocol.Heartbeat,
    protocol.HeartbeatReply,
    protocol.Directives,
    protocol.Accept,
    protocol.LaunchSpec,
    protocol.StateReport,
    protocol.StateAccepted,
    protocol.LogAccepted,
    samples.MetricsBatch,
    samples.MetricsAccepted,
)


def agent_schema() -> dict[str, Any]:
    """Schema document with a definition for every payload and part."""
    _, schema = TypeAdapter.json_schemas(
        [(payload.__name__, "validation", form(payload).adapter) for payload in PAYLOADS],
        title=f"Loadmaster agent protocol, version {protocol.PROTOCOL_VERSION}",
        schema_generator=FormSchema,
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(agent_schema(), indent=1) + "\n")
