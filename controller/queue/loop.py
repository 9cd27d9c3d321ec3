"""Worker loop: takes requests from a queue, reconciles them, and decides when they return.

The rules are controller-runtime's: an error returns after the request's back-off, a terminal one (a
`TerminalError`, or a status that the API server finds invalid) not at all, `requeue_after_seconds` resets
the back-off and returns then, success only resets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from controller import clock
from controller.api.api_wait import ApiWait, current_wait
from controller.api.fairness import current_flow
from controller.errors import (
    ApiError,
    Conflict,
    InvalidStatus,
    NamespaceTerminating,
    NotFound,
    Unavailable,
)
from controller.queue.metrics import QueueMetrics, ReconcileMetrics
from controller.queue.workqueue import QueueShutDown, WorkQueue
from controller.reconciler import (
    Reconciler,
    ReconcileReporter,
    ReconcileTimeout,
    Request,
    Result,
    TerminalError,
)
from controller.slices import Slices

log = logging.getLogger(__name__)

RECONCILE_TIMEOUT_SECONDS = 120.0
"""Default time limit: a reconcile makes a few calls of at most ten seconds each; a longer one hangs."""
LONG_LOOK_SECONDS = 0.05
MAX_REST_SECONDS = 1.0
LATE_CACHE_FAILURES = 10
"""Failures after which a stale cache is reported; with the queue's back-off, they take 2.5 s."""

_TERMINAL = (TerminalError, InvalidStatus)


class ReconcileLoop:
    """Loop of `workers` tasks over one queue."""

    def __init__(
        self,
        name: str,
        queue: WorkQueue[Request],
        reconciler: Reconciler,
        *,
        workers: int,
        metrics: ReconcileMetrics,
        timeout_seconds: float = RECONCILE_TIMEOUT_SECONDS,
        reporter: ReconcileReporter | None = None,
    ) -> None:
        self.name = name
        self._queue = queue
        self._reconciler = reconciler
        self._workers = workers
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._reporter = reporter
        metrics.announce(name, workers)

    async def run(self) -> None:
        """Run until the queue is shut down and current work is done."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(self._workers):
                tasks.create_task(self._work(), name=f"reconcile {self.name} {index}")

    async def _work(self) -> None:
        slices = Slices()
        while True:
            await slices.pause()  # a reconcile without waits gives no other task a turn
            try:
                request = await self._queue.get()
            except QueueShutDown:
                return
            current_flow.set(self._queue.flow_of(request))
            wait = ApiWait()
            current_wait.set(wait)
            started = clock.monotonic()
            with self._metrics.active_workers.labels(self.name).track_inprogress():
                try:
                    await self.process(request)
                finally:
                    self._rest(request, clock.monotonic() - started - wait.seconds)

    def _rest(self, request: Request, took_seconds: float) -> None:
        """After a long computation, delay the next reconcile of the same object by the same time.

        The next reconcile then covers all that happened meanwhile: otherwise a thousand workers that
        become ready one by one would cause as many reconciles of their job.
        """
        if took_seconds < LONG_LOOK_SECONDS:
            self._queue.done(request)
            return
        wait_seconds = min(took_seconds, MAX_REST_SECONDS)
        asyncio.get_running_loop().call_later(wait_seconds, self._queue.done, request)

    async def process(self, request: Request) -> None:
        """Process one request, including its consequence for the queue."""
        started = clock.monotonic()
        try:
            result = await self._reconcile(request)
        except Exception as error:
            self._failed(request, error)
            if self._reporter is not None and not _is_foreseen(error):
                await self._report(self._reporter.failed(request, error), request)
        else:
            self._succeeded(request, result)
            if self._reporter is not None:
                await self._report(self._reporter.succeeded(request), request)
        finally:
            self._metrics.seconds.labels(self.name).observe(clock.monotonic() - started)

    async def _report(self, report: Coroutine[Any, Any, None], request: Request) -> None:
        """Send a report; if that fails, it is logged, and the next reconcile tries again."""
        try:
            await report
        except Exception as error:
            log.info("could not be reported controller=%s object=%s error=%s", self.name, request, error)

    async def _reconcile(self, request: Request) -> Result:
        try:
            async with asyncio.timeout(self._timeout_seconds) as scope:
                return await self._reconciler.reconcile(request)
        except TimeoutError as error:
            if not scope.expired():
                raise
            self._metrics.timeouts.labels(self.name).inc()
            raise ReconcileTimeout(f"did not end within {self._timeout_seconds:g} s") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside cancelled itself, but this worker must continue.
            raise RuntimeError("the reconcile was cancelled from inside") from error

    def _succeeded(self, request: Request, result: Result) -> None:
        self._queue.forget(request)
        if result.requeue_after_seconds is None:
            self._metrics.total.labels(self.name, "success").inc()
            return
        self._metrics.total.labels(self.name, "requeue_after").inc()
        self._queue.add_after(request, result.requeue_after_seconds, result.seconds_left)

    def _failed(self, request: Request, error: Exception) -> None:
        self._metrics.total.labels(self.name, "error").inc()
        self._metrics.errors.labels(self.name).inc()
        panics = not isinstance(error, (ApiError, ReconcileTimeout, OSError, *_TERMINAL))
        if panics:
            self._metrics.panics.labels(self.name).inc()
        terminal, failures = isinstance(error, _TERMINAL), self._queue.failures(request) + 1
        log.log(
            logging.ERROR if panics or terminal else _severity(error, failures),
            "reconcile failed controller=%s object=%s failures=%d retry=%s error=%s: %s",
            self.name,
            request,
            failures,
            not terminal,
            type(error).__name__,
            error,
            exc_info=error if panics else None,
        )
        if terminal:
            self._metrics.terminal_errors.labels(self.name).inc()
            self._queue.forget(request)
        else:
            wait_seconds = error.retry_after_seconds if isinstance(error, Unavailable) else None
            self._queue.add_rate_limited(request, wait_seconds or 0.0)


def _is_foreseen(error: Exception) -> bool:
    """Return whether the error is temporary, from the API server or the network, and retried."""
    return isinstance(error, ApiError | OSError) and not isinstance(error, _TERMINAL)


def _severity(error: Exception, failures: int) -> int:
    if isinstance(error, Conflict):
        # The decision was based on an outdated object, which optimistic writes detect.
        return logging.DEBUG if failures == 1 else logging.INFO
    if isinstance(error, NotFound) and failures < LATE_CACHE_FAILURES:
        return logging.INFO  # it was deleted, and the cache does not show it yet
    if isinstance(error, NamespaceTerminating):
        return logging.INFO  # the server is deleting all its objects
    return logging.WARNING


def make_queue(
    name: str,
    metrics: QueueMetrics,
    flow_of: Callable[[Request], Request] | None = None,
    goes_first: Callable[[str], bool] | None = None,
) -> WorkQueue[Request]:
    """Make the queue of a controller; by default each request is its own flow."""
    queue: WorkQueue[Request] = WorkQueue(
        observer=metrics.observer(name), flow_of=flow_of or Request._make, goes_first=goes_first
    )
    metrics.follow(name, queue.working_seconds)
    return queue
