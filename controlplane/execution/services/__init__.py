"""What agents say of their assignments, and how assignments are stopped."""

from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.heartbeats import heartbeat
from controlplane.execution.services.logs import append_log
from controlplane.execution.services.metrics import record_metrics
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import evict, request_stop, stop_job, stop_profiling

__all__ = [
    "accept",
    "append_log",
    "evict",
    "heartbeat",
    "open_session",
    "record_metrics",
    "report_state",
    "request_stop",
    "stop_job",
    "stop_profiling",
]
