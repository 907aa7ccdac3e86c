"""Errors that answer agents' calls, with status, code and remedy, and checks that raise them."""

from collections.abc import Mapping
from datetime import UTC, datetime

from clusters.plausible import MOST_MEMORY_GB
from loadmaster.protocol import (
    MOST_DEVICES,
    MOST_LAUNCHES,
    MOST_SLOTS,
    DeviceReport,
    ErrorCode,
    KnownAssignment,
    Registration,
)

_HEADERS: dict[int, dict[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": "1"},
}
"""Headers of every refusal with a status."""


class AgentCallError(Exception):
    """Refused call of an agent.

    `status`: of the HTTP answer. `field`: the wrong field of the request. `expected`: its right
    value.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str = "",
        expected: int | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.expected = expected
        self.headers = {**_HEADERS.get(status, {}), **(headers or {})}

    def body(self) -> dict[str, dict[str, object]]:
        """Return the answer's JSON: {"error": {"code", "detail", "field"?, "expected"?}}."""
        error: dict[str, object] = {"code": str(self.code), "detail": self.detail}
        if self.field:
            error["field"] = self.field
        if self.expected is not None:
            error["expected"] = self.expected
        return {"error": error}


def invalid(field: str, problem: str) -> AgentCallError:
    """Return the refusal of a request with an invalid field."""
    return AgentCallError(400, "invalid", f"{field}: {problem}", field=field)


def bad_token(detail: str) -> AgentCallError:
    """Return the refusal of a call whose token is not valid."""
    return AgentCallError(401, ErrorCode.TOKEN, detail)


def unknown_token() -> AgentCallError:
    """Return the refusal of a call with an unknown token of a node."""
    return bad_token("this node token is unknown or revoked; enrol the node again")


def not_yours() -> AgentCallError:
    """Return the refusal of a call for a node with the token of another one."""
    return AgentCallError(403, "not_yours", "this token is another node's")


def stale_epoch(epoch: int, current: int) -> AgentCallError:
    """Return the refusal of a call of an older session."""
    return AgentCallError(
        409,
        ErrorCode.STALE_EPOCH,
        f"epoch {epoch} is over, open a new session",
        field="epoch",
        expected=current,
    )


def stale_assignment(detail: str) -> AgentCallError:
    """Return the refusal of a call for an assignment that is over or of another node or fence."""
    return AgentCallError(409, ErrorCode.STALE_ASSIGNMENT, detail)


INT = 2_147_483_647
"""Largest integer that a column of the database holds."""

MOST_CORES = 4096
MOST_NODE_MEMORY_GB = 65_536
MOST_FEATURES = 64
"""Most cores, memory and features that a node may register."""


def check_text(field: str, text: str, longest: int, *, empty: bool = True) -> None:
    """Refuse a text that is too long or cannot be printed, or is empty without `empty`."""
    if len(text) > longest:
        raise invalid(field, f"may have at most {longest} characters, not {len(text)}")
    if not text.isprintable():
        raise invalid(field, "must not hold control characters or marks of direction")
    if not text and not empty:
        raise invalid(field, "must not be empty")


def check_number(field: str, value: float | None, lowest: float, highest: float) -> None:
    """Refuse a number out of its bounds."""
    if value is not None and not lowest <= value <= highest:
        raise invalid(field, f"must be between {lowest:g} and {highest:g}, not {value:g}")


def moment(field: str, at_s: float) -> datetime:
    """Return the UTC time of Unix seconds; refuse times outside the calendar."""
    try:
        return datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):
        raise invalid(field, f"{at_s:g} is no time in Unix seconds") from None


def check_devices(devices: tuple[DeviceReport, ...]) -> None:
    """Refuse a list with too many GPUs, one of them twice, or several types."""
    if len(devices) > MOST_DEVICES:
        raise invalid("devices", f"a node may have {MOST_DEVICES} GPUs, not {len(devices)}")

    # 1. Each GPU by itself.
    for index, device in enumerate(devices):
        check_text(f"devices[{index}].uuid", device.uuid, 100, empty=False)
        check_text(f"devices[{index}].parent_uuid", device.parent_uuid, 100)
        check_text(f"devices[{index}].mig_profile", device.mig_profile, 50)
        check_number(f"devices[{index}].slots", device.slots, 1, MOST_SLOTS)
        check_number(f"devices[{index}].memory_gb", device.memory_gb, 0, MOST_MEMORY_GB)

    # 2. All of them together.
    if len({device.uuid for device in devices}) < len(devices):
        raise invalid("devices", "a uuid is there twice; every device needs its own")
    types = sorted({device.gpu_type for device in devices})
    if len(types) > 1:
        raise invalid(
            "devices",
            f"a node has GPUs of one type, this machine reports {', '.join(types)}; run one agent"
            " for each",
        )


def check_launches(launches: tuple[KnownAssignment, ...]) -> None:
    """Refuse a list of more launches than a node may have: the server looks up each of them."""
    count = len(launches)
    if count > MOST_LAUNCHES:
        raise invalid("assignments", f"a node may have {MOST_LAUNCHES} launches, not {count}")


def check_features(features: tuple[str, ...]) -> None:
    """Refuse a long list of features, or one with a long name."""
    if len(features) > MOST_FEATURES:
        raise invalid("features", f"may name {MOST_FEATURES} features, not {len(features)}")
    for index, name in enumerate(features):
        check_text(f"features[{index}]", name, 63)


def check_registration(registration: Registration) -> None:
    """Refuse a registration that the database cannot hold or that contradicts itself."""
    check_text("machine_id", registration.machine_id, 100, empty=False)
    check_text("boot_id", registration.boot_id, 100)
    if registration.name:
        check_text("name", registration.name, 100)
    else:
        check_text("hostname", registration.hostname, 100, empty=False)
    check_text("rack", registration.rack, 63)
    check_number("cores", registration.cores, 0, MOST_CORES)
    check_number("memory_gb", registration.memory_gb, 0, MOST_NODE_MEMORY_GB)
    check_features(registration.features)
    check_devices(registration.devices)
