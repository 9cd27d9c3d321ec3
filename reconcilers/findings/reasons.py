"""Condition `NodesChecked` of a job: its type, and its harmless reasons."""

from __future__ import annotations

NODES_CHECKED = "NodesChecked"
CHECKING, REFUSED, GONE, INTERRUPTED = "Checking", "CheckRefused", "CheckGone", "CheckInterrupted"
FRESH, NOT_YET = "Fresh", "NotYetChecked"
QUIET = frozenset({CHECKING, INTERRUPTED, FRESH, NOT_YET, "AllHealthy"})
