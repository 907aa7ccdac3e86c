"""Audit of deleted records of django-axes, such as by `manage.py axes_reset*`."""

from axes.handlers.database import AxesDatabaseHandler
from django.db import transaction

from controlplane.audit.record import record


class AuditedLockouts(AxesDatabaseHandler):  # type: ignore[misc]  # the library has no types
    """Handler of django-axes whose resets are rows of the audit. Logins do not call them."""

    @transaction.atomic
    def reset_attempts(
        self,
        *,
        ip_address: str | None = None,
        username: str | None = None,
        ip_or_username: bool = False,
    ) -> int:
        count: int = super().reset_attempts(
            ip_address=ip_address, username=username, ip_or_username=ip_or_username
        )
        if count:
            accounts = " ".join(filter(None, (username, ip_address))) or "all accounts"
            record("lockout.end", accounts, new={"attempts": count})
        return count

    @transaction.atomic
    def reset_logs(self, *, age_days: int | None = None) -> int:
        count: int = super().reset_logs(age_days=age_days)
        _record_prune("logs of logins", count)
        return count

    @transaction.atomic
    def reset_failure_logs(self, *, age_days: int | None = None) -> int:
        count: int = super().reset_failure_logs(age_days=age_days)
        _record_prune("logs of failed logins", count)
        return count


def _record_prune(logs: str, count: int) -> None:
    """Add a row for the deletion of so many records, if there were any."""
    if count:
        record("server.prune", logs, new={"logins": count})
