"""Metric `dlr_job_shard_elements`: the elements of all shard sets, from the ShardSets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.cache import Cache
from reconcilers.runtime.kinds import SHARDSETS

NAME = "dlr_job_shard_elements"
TEXT = "Elements of the job's shard sets, by what became of them"
LABELS = ("namespace", "job_name", "set", "state")
STATES = ("done", "leased", "waiting", "failed")


class ShardMetrics(Collector):
    """Reads the cache whenever the metrics are read.

    Args:
        leads: whether this process is the leader, which alone reports.
    """

    def __init__(self, cache: Cache, leads: Callable[[], bool]) -> None:
        self._sets = cache.store(SHARDSETS)
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(NAME, TEXT, labels=LABELS)
        for raw in self._sets.list() if self._leads() else ():
            spec, status = raw["spec"], raw.get("status") or {}
            for state in STATES if status else ():
                key = (raw["metadata"]["namespace"], spec["jobName"], spec["setName"], state)
                family.add_metric(key, status.get(state) or 0)
        yield family
