"""The worker loop: takes requests from a queue, has them reconciled, and decides when they come back.

The same rules as controller-runtime: an error comes back after the request's back-off, a terminal one (a
`TerminalError`, or a status that the API server finds invalid) not at all, `requeue_after_seconds` forgets
the back-off and comes back then, success just forgets it.
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
"""A reconcile makes a few calls of at most ten seconds each; one that takes longer hangs."""
LONG_LOOK_SECONDS = 0.05
MAX_REST_SECONDS = 1.0
LATE_CACHE_FAILURES = 10
"""With the queue's back-off, they take 2.5 s."""

_TERMINAL = (TerminalError, InvalidStatus)


class ReconcileLoop:
    """`workers` tasks over one queue."""

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
        """Until the queue is shut down and what was in work is done."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(self._workers):
                tasks.create_task(self._work(), name=f"reconcile {self.name} {index}")

    async def _work(self) -> None:
        slices = Slices()
        while True:
            await slices.pause()  # a look that has nothing to wait for gives nobody else a turn
            try:
                request = await self._queue.get()
            except QueueShutDown:
                return
            current_flow.set(self._queue.flow_of(request))
            wait = ApiWait()
            current_wait.set(wait)
            started = _now()
            with self._metrics.active_workers.labels(self.name).track_inprogress():
                try:
                    await self.process(request)
                finally:
                    self._rest(request, _now() - started - wait.seconds)

    def _rest(self, request: Request, took_seconds: float) -> None:
        """After a look that computed for long, the next at the same object waits for as long.

        What happens meanwhile is seen by one look: else a thousand workers that become ready one after the
        other would have their job looked at again and again.
        """
        if took_seconds < LONG_LOOK_SECONDS:
            self._queue.done(request)
            return
        wait_seconds = min(took_seconds, MAX_REST_SECONDS)
        asyncio.get_running_loop().call_later(wait_seconds, self._queue.done, request)

    async def process(self, request: Request) -> None:
        """One request, to its consequence for the queue."""
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
        """What cannot be shown is in the log; the next look tries to show it again."""
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
            # Something inside cancelled itself; this worker is not being stopped and must go on.
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
    """What comes and goes with the API server, and is tried again."""
    return isinstance(error, ApiError | OSError) and not isinstance(error, _TERMINAL)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _severity(error: Exception, failures: int) -> int:
    if isinstance(error, Conflict):
        # Decided from an object that has changed meanwhile: what optimistic writes are for.
        return logging.DEBUG if failures == 1 else logging.INFO
    if isinstance(error, NotFound) and failures < LATE_CACHE_FAILURES:
        return logging.INFO  # it was deleted, and the cache has yet to hear of that
    if isinstance(error, NamespaceTerminating):
        return logging.INFO  # the server takes what is in there, and nothing more can be made
    return logging.WARNING


def make_queue(
    name: str,
    metrics: QueueMetrics,
    flow_of: Callable[[Request], Request] | None = None,
    goes_first: Callable[[str], bool] | None = None,
) -> WorkQueue[Request]:
    """Make the queue of a controller, in which each request is a flow of its namespace, or of another's."""
    queue: WorkQueue[Request] = WorkQueue(
        observer=metrics.observer(name), flow_of=flow_of or Request._make, goes_first=goes_first
    )
    metrics.follow(name, queue.working_seconds)
    return queue
