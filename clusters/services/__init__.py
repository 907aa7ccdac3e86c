"""Services for nodes, the only entry for views, tasks and other apps."""

from clusters.services.devices import flush_samples
from clusters.services.enrolment import issue_enrolment_token, register
from clusters.services.nodes import (
    NodeStateError,
    SlotsError,
    node_cordon,
    node_drain,
    node_revoke,
    node_set_role,
    node_set_slots,
    node_uncordon,
)

__all__ = [
    "NodeStateError", "SlotsError", "flush_samples", "issue_enrolment_token", "node_cordon",
    "node_drain", "node_revoke", "node_set_role", "node_set_slots", "node_uncordon", "register",
]  # fmt: skip
