"""Checks of agents' words: lengths and ranges the database holds, times that exist."""

from __future__ import annotations

from datetime import UTC, datetime

from clusters.agents.errors import invalid
from loadmaster.protocol import MOST_SLOTS, DeviceReport, Registration

INT = 2_147_483_647
ABSURD = 1e9


def check_text(field: str, text: str, longest: int, *, empty: bool = True) -> None:
    """Refuse text of more than `longest` characters, and none at all unless `empty`."""
    if len(text) > longest:
        raise invalid(field, f"may have at most {longest} characters, not {len(text)}")
    if not text.isprintable():
        raise invalid(field, "must not hold control characters or marks of direction")
    if not text and not empty:
        raise invalid(field, "must not be empty")


def check_number(field: str, value: float | None, lowest: float, highest: float) -> None:
    """Refuse what is outside lowest..highest."""
    if value is not None and not lowest <= value <= highest:
        raise invalid(field, f"must be between {lowest:g} and {highest:g}, not {value:g}")


def moment(field: str, at_s: float) -> datetime:
    """The UTC time of so many Unix seconds; a refusal for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):
        raise invalid(field, f"{at_s:g} is no time in Unix seconds") from None


def check_devices(devices: tuple[DeviceReport, ...]) -> None:
    """A node offers at least one GPU, each once, all of one type."""
    if not devices:
        raise invalid("devices", "the machine offers no GPU")
    for index, device in enumerate(devices):
        check_text(f"devices[{index}].uuid", device.uuid, 100, empty=False)
        check_text(f"devices[{index}].parent_uuid", device.parent_uuid, 100)
        check_text(f"devices[{index}].mig_profile", device.mig_profile, 50)
        check_number(f"devices[{index}].slots", device.slots, 1, MOST_SLOTS)
        check_number(f"devices[{index}].memory_gb", device.memory_gb, 0, ABSURD)
    if len({device.uuid for device in devices}) < len(devices):
        raise invalid("devices", "a uuid is there twice; every device needs its own")
    types = sorted({device.gpu_type for device in devices})
    if len(types) > 1:
        raise invalid(
            "devices",
            f"a node has GPUs of one type, this machine reports {', '.join(types)}; run one agent"
            " for each",
        )


def check_registration(words: Registration) -> None:
    """Refuse a registration the database could not hold or that makes no sense."""
    check_text("machine_id", words.machine_id, 100, empty=False)
    check_text("boot_id", words.boot_id, 100)
    check_text("name" if words.name else "hostname", words.name or words.hostname, 100, empty=False)
    check_text("rack", words.rack, 63)
    check_number("cores", words.cores, 0, ABSURD)
    check_number("memory_gb", words.memory_gb, 0, ABSURD)
    check_devices(words.devices)
