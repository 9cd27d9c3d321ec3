"""Retries of what the API server refuses or does not answer, and the log lines that tell of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import tenacity

from agent.signals import is_of_signal
from controller.errors import ApiError, NotFound

THROTTLED_SPREAD_SECONDS = 10.0
"""Random time on top of Retry-After, at most: ten thousand throttled agents do not come back all at once."""

MISSING_WAIT_SECONDS = 15.0
"""Longest wait for an object that is not there: it was deleted with its job, and this Pod is about to end."""


class Warnings:
    """Warns that something does not work: once for each kind of error, and once more when it works again.

    So an attempt that fails for an hour is two lines in the log.

    Args:
        logger: of who tries.
        what: is tried, as a verb and its object: "renew lease default/digits-worker-0".
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._last_kind: str | None = None

    def failed(self, error: BaseException | None) -> None:
        """Warn, unless the last attempt failed in the same way; of a defect, show where it is."""
        kind = f"{type(error).__name__} {getattr(error, 'status', '')}"
        if kind != self._last_kind:
            self._last_kind = kind
            defect = None if isinstance(error, ApiError) else error
            told = error if defect is None else repr(error)
            self._logger.warning(
                "cannot %s, trying again until it works: %s", self._what, told, exc_info=defect
            )

    def succeeded(self) -> None:
        """Say that it works again, if it did not."""
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
    """Return what calls a function until it raises nothing: the Pod's life is the bound.

    An error that is no ApiError is a defect, which must not end the thread of what is tried, in silence, or a
    signal, which ends this agent. The waits are random up to a doubling bound, so that a server which comes
    back is not met by all at once. One that names a wait (Retry-After) is not asked sooner.

    Args:
        stop: ends the retries; the last error is then raised.
        warnings: hears of each attempt that failed.
        max_wait_seconds: between two attempts, where the API server asks for no more and the object is there.
        is_final: tells whether an error is raised at once.
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
