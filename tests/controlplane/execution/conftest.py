"""What the tests of the agent protocol share: a client that speaks it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse

from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from loadmaster.wire import dumps
from tests.builders_agents import NODE_TOKEN
from tests.builders_asgi import SiteClient

Call = Callable[..., HttpResponse]


@pytest.fixture
def call() -> Call:
    """Send a request as an agent does: `call("post", "register", words)`. Words are a dataclass of
    the protocol, bytes or None.
    """

    client = SiteClient()

    def send(
        method: str,
        path: str,
        words: Any = None,
        *,
        token: str = NODE_TOKEN,
        version: Any = PROTOCOL_VERSION,
        **more: Any,
    ) -> Any:
        body = (
            words if isinstance(words, (bytes, str)) else dumps(words) if words is not None else b""
        )
        headers = {
            PROTOCOL_HEADER: str(version),
            **({"Authorization": f"Bearer {token}"} if token else {}),
            **more,
        }
        return client.generic(
            method.upper(),
            f"/api/agent/v1/{path}",
            body,
            content_type="application/json",
            headers=headers,
        )

    return send
