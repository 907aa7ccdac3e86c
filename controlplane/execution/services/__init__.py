"""Services of the agent protocol and of stops."""

from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.heartbeats import heartbeat
from controlplane.execution.services.logs import append_log
from controlplane.execution.services.metrics import record_metrics
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import (
    preempt_gang,
    stop_assignment,
    stop_job,
    stop_profiling,
)

__all__ = [
    "accept",
    "append_log",
    "heartbeat",
    "open_session",
    "preempt_gang",
    "record_metrics",
    "report_state",
    "stop_assignment",
    "stop_job",
    "stop_profiling",
]
