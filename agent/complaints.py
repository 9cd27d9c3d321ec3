"""Say once what stays the same: a retry that fails for an hour is two lines in the log."""

from __future__ import annotations

import logging

import tenacity


class Complaints:
    """Of one thing that is tried again and again."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._said: str | None = None

    def failed(self, attempt: tenacity.RetryCallState) -> None:
        """For tenacity's `before_sleep`."""
        error = attempt.outcome.exception() if attempt.outcome else None
        kind = f"{type(error).__name__} {getattr(error, 'status', '')}"
        if kind != self._said:
            self._said = kind
            self._logger.warning("cannot %s, trying again until it works: %s", self._what, error)

    def succeeded(self) -> None:
        if self._said is not None:
            self._said = None
            self._logger.info("can %s again", self._what)
