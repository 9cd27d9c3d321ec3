"""Times as Kubernetes writes them (metav1.MicroTime)."""

from __future__ import annotations

from datetime import datetime, timezone


def rfc3339(moment: datetime) -> str:
    """Return the time in UTC, with microseconds."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
