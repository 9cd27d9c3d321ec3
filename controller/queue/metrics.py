"""Prometheus metrics, under the names of controller-runtime and client-go.

Each manager has its own registry, so that two in one process (tests, the embedded cluster) do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.cache import Cache

# Otherwise every counter comes with a gauge of its creation, which Go's client does not have.
disable_created_metrics()  # type: ignore[no-untyped-call]

_RECONCILE_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
)  # fmt: skip
_LABELS = ("name", "controller")
"""Labels of a queue, which is named like its controller."""
_QUEUE_SECONDS = tuple(10.0**exponent for exponent in range(-8, 4))

RESULTS = ("error", "requeue_after", "requeue", "success")


class ReconcileMetrics:
    """Metrics `controller_runtime_*` of the reconcilers of one manager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(
                f"controller_runtime_{name}_total", text, ("controller", *labels), registry=registry
            )

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"controller_runtime_{name}", text, ("controller",), registry=registry)

        self.total = counter("reconcile", "Total number of reconciliations per controller", "result")
        self.errors = counter("reconcile_errors", "Total number of reconciliation errors per controller")
        self.terminal_errors = counter(
            "terminal_reconcile_errors", "Total number of terminal reconciliation errors per controller"
        )
        self.panics = counter(
            "reconcile_panics", "Total number of reconciliations that ended in an unforeseen exception"
        )
        self.timeouts = counter(
            "reconcile_timeouts", "Total number of reconciliations that ran into the reconciliation time-out"
        )
        self.max_concurrent = gauge(
            "max_concurrent_reconciles", "Maximum number of concurrent reconciles per controller"
        )
        self.active_workers = gauge("active_workers", "Number of currently used workers per controller")
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Length of time per reconciliation per controller",
            ("controller",),
            buckets=_RECONCILE_SECONDS,
            registry=registry,
        )

    def announce(self, controller: str, workers: int) -> None:
        """Initialize the controller's metrics with zeros, so that a rate starts at its start."""
        self.max_concurrent.labels(controller).set(workers)
        self.active_workers.labels(controller).set(0)
        for counter in (self.errors, self.terminal_errors, self.panics, self.timeouts):
            counter.labels(controller)
        self.seconds.labels(controller)
        for result in RESULTS:
            self.total.labels(controller, result)


class QueueMetrics:
    """Metrics `workqueue_*` of the queues of one manager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"workqueue_{name}", text, _LABELS, buckets=_QUEUE_SECONDS, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"workqueue_{name}_total", text, _LABELS, registry=registry)

        self.depth = Gauge("workqueue_depth", "Current depth of workqueue", _LABELS, registry=registry)
        self.adds = counter("adds", "Total number of adds handled by workqueue")
        self.retries = counter("retries", "Total number of retries handled by workqueue")
        self.waited = seconds(
            "queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested"
        )
        self.worked = seconds(
            "work_duration_seconds", "How long in seconds processing an item from workqueue takes"
        )
        self._in_work = _InWorkCollector()
        registry.register(self._in_work)

    def observer(self, name: str) -> QueueMetricsObserver:
        return QueueMetricsObserver(self, name)

    def follow(self, name: str, working_seconds: Callable[[], list[float]]) -> None:
        """Report the time that keys have been in work at each scrape."""
        self._in_work.queues[name] = working_seconds


class QueueMetricsObserver:
    """Metrics of one queue."""

    def __init__(self, metrics: QueueMetrics, name: str) -> None:
        self._depth = metrics.depth.labels(name, name)
        self._adds = metrics.adds.labels(name, name)
        self._retries = metrics.retries.labels(name, name)
        self._waited = metrics.waited.labels(name, name)
        self._worked = metrics.worked.labels(name, name)

    def added(self, depth: int) -> None:
        self._adds.inc()
        self._depth.set(depth)

    def taken(self, depth: int, waited_seconds: float) -> None:
        self._depth.set(depth)
        self._waited.observe(waited_seconds)

    def finished(self, worked_seconds: float) -> None:
        self._worked.observe(worked_seconds)

    def retried(self) -> None:
        self._retries.inc()


class _InWorkCollector(Collector):
    """Metrics that change with time, so they are computed at each scrape."""

    def __init__(self) -> None:
        self.queues: dict[str, Callable[[], list[float]]] = {}

    def collect(self) -> Iterator[Metric]:
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds",
            "How many seconds of work is in progress and has not been observed by work_duration",
            labels=_LABELS,
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running",
            labels=_LABELS,
        )
        for name, working_seconds in self.queues.items():
            seconds = working_seconds()
            unfinished.add_metric((name, name), sum(seconds))
            longest.add_metric((name, name), max(seconds, default=0.0))
        yield unfinished
        yield longest


class WatchCollector(Collector):
    """Metrics of the watches of one manager: unreadable objects and age of progress."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        unreadable = GaugeMetricFamily(
            "dlr_unreadable_objects",
            "Objects of the API server that the controller cannot read, and leaves alone",
            labels=("resource",),
        )
        age = GaugeMetricFamily(
            "dlr_watch_progress_age_seconds",
            "Time since the controller last had all that the API server has of a resource",
            labels=("resource",),
            unit="seconds",
        )
        for resource, count in self._cache.unreadable_counts().items():
            unreadable.add_metric((resource,), count)
        for resource, seconds in self._cache.seconds_since_progress().items():
            age.add_metric((resource,), seconds)
        yield unreadable
        yield age


class ClientMetrics:
    """Metric `rest_client_requests_total`; add `observe` to `AsyncClient.observers`."""

    def __init__(self, registry: CollectorRegistry, host: str) -> None:
        self._host = host
        self._requests = Counter(
            "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host",
            ("code", "method", "host"),
            registry=registry,
        )

    def observe(self, method: str, status: int | None) -> None:
        code = "<error>" if status is None else str(status)
        self._requests.labels(code, method, self._host).inc()


def leader_gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "leader_election_master_status",
        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, "
        "1 indicates master. 'name' is the string used to identify the lease",
        ("name",),
        registry=registry,
    )
