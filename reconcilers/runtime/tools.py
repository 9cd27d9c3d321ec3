"""Tools that all reconcilers use."""

from __future__ import annotations

from dataclasses import dataclass

from controller.cache import Cache
from controller.client import AsyncClient
from controller.contact import Contact
from controller.events import EventRecorder
from controller.reconciler import Reconciler
from controller.resources import NODES, PODS
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS


@dataclass(frozen=True)
class Tools:
    """A reconciler reads from the cache, writes by the client, and records Events by the recorder."""

    client: AsyncClient
    cache: Cache
    recorder: EventRecorder
    contact: Contact
    """The contact to the API server, with its beginning."""
    clock: Clock


class WithTools(Reconciler):
    """A reconciler with its tools, and stores and models of the most used kinds."""

    def __init__(self, tools: Tools) -> None:
        self._client, self._recorder = tools.client, tools.recorder
        self._contact, self._clock = tools.contact, tools.clock
        self._cache = cache = tools.cache
        self._jobs, self._workers = cache.store(ELASTICJOBS), cache.store(ELASTICWORKERS)
        self._pods, self._nodes = cache.store(PODS), cache.store(NODES)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
