"""Services for nodes and assignments, the only entry for views, tasks and other apps."""

from clusters.services.assignments import accept, report_state
from clusters.services.devices import flush_samples
from clusters.services.enrolment import issue_enrolment_token, register
from clusters.services.heartbeats import heartbeat
from clusters.services.logs import append_log
from clusters.services.metrics import record_metrics
from clusters.services.nodes import (
    NodeStateError,
    node_cordon,
    node_drain,
    node_revoke,
    node_set_role,
    node_uncordon,
)
from clusters.services.sessions import open_session
from clusters.services.slots import SlotsError, node_set_slots
from clusters.services.stops import evict, request_stop

__all__ = [
    "NodeStateError",
    "SlotsError",
    "accept",
    "append_log",
    "evict",
    "flush_samples",
    "heartbeat",
    "issue_enrolment_token",
    "node_cordon",
    "node_drain",
    "node_revoke",
    "node_set_role",
    "node_set_slots",
    "node_uncordon",
    "open_session",
    "record_metrics",
    "register",
    "report_state",
    "request_stop",
]
