"""Retries of calls that the API server refuses or does not answer, and their log lines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import tenacity

from agent.signals import is_of_signal
from controller.errors import ApiError, NotFound

THROTTLED_SPREAD_SECONDS = 10.0
"""Longest random time added to Retry-After, so that ten thousand throttled agents do not return all at
once."""

MISSING_WAIT_SECONDS = 15.0
"""Longest wait for a missing object, which was deleted with its job, so that this Pod is about to end."""


class Warnings:
    """Logs that a call fails, once for each kind of error, and that it works again.

    So a call that fails for an hour makes two lines in the log.

    Args:
        logger: logger of the caller.
        what: the call, as a verb and its object: "renew lease default/digits-worker-0".
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._last_kind: str | None = None

    def failed(self, error: BaseException | None) -> None:
        """Warn, unless the last attempt failed in the same way; for a defect, with a traceback."""
        kind = f"{type(error).__name__} {getattr(error, 'status', '')}"
        if kind != self._last_kind:
            self._last_kind = kind
            defect = None if isinstance(error, ApiError) else error
            text = error if defect is None else repr(error)
            self._logger.warning(
                "cannot %s, trying again until it works: %s", self._what, text, exc_info=defect
            )

    def succeeded(self) -> None:
        """Log that the call works again, if it had failed."""
        if self._last_kind is not None:
            self._last_kind = None
            self._logger.info("can %s again", self._what)


def retrying(
    stop: threading.Event,
    warnings: Warnings,
    *,
    max_wait_seconds: float,
    is_final: Callable[[Exception], object] = lambda error: False,
) -> tenacity.Retrying:
    """Return a caller that retries a function until it raises nothing, for as long as the Pod lives.

    An error other than ApiError is either a defect, which must not silently end the caller's thread, or
    raised by a signal that ends this agent. Waits are random up to a doubling limit, so that not all agents
    call a returning server at once. A wait that the server demands (Retry-After) is respected.

    Args:
        stop: event that ends the retries; the last error is then raised.
        warnings: logs failed attempts.
        max_wait_seconds: longest pause, unless the API server demands more or the object is missing.
        is_final: returns whether an error is raised at once.
    """

    def should_retry(error: BaseException) -> bool:
        return isinstance(error, Exception) and not is_of_signal(error) and not is_final(error)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(should_retry),
        wait=_wait(max_wait_seconds),
        sleep=tenacity.sleep_using_event(stop),
        stop=tenacity.stop_when_event_set(stop),
        before_sleep=lambda attempt: warnings.failed(
            attempt.outcome.exception() if attempt.outcome else None
        ),
        reraise=True,
    )


def _wait(max_wait_seconds: float) -> Callable[[tenacity.RetryCallState], float]:
    usual = tenacity.wait_random_exponential(multiplier=0.2, max=max_wait_seconds)
    missing = tenacity.wait_random_exponential(0.2, max=max(max_wait_seconds, MISSING_WAIT_SECONDS))

    def wait(attempt: tenacity.RetryCallState) -> float:
        error = attempt.outcome.exception() if attempt.outcome else None
        if not isinstance(error, ApiError):
            return usual(attempt)
        if error.retry_after_seconds:
            spread = tenacity.wait_random_exponential(error.retry_after_seconds, max=THROTTLED_SPREAD_SECONDS)
            return error.retry_after_seconds + spread(attempt)
        return missing(attempt) if isinstance(error, NotFound) else usual(attempt)

    return wait
