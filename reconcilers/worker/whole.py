"""Whole jobs and checks, to build Pods of: the cache has cut what is large (reconcilers/worker/shapes.py).

One that was cut is read from the API server once a generation, however many ask at once. What was read is
kept as text: parsing it is cheaper than copying objects, and it takes a twentieth of their memory.
"""

from __future__ import annotations

from collections import OrderedDict

import orjson

from controller.client import Client
from controller.errors import Conflict
from controller.resources import Object, Resource
from controller.salvage import parsed
from controller.shared_calls import SharedCalls
from crds.elasticjob import ElasticJob
from crds.nodecheck import NodeCheck
from reconcilers.observed.resources import is_cut
from reconcilers.runtime.kinds import ELASTICJOBS, NODECHECKS

MOST_BYTES = 32 << 20

Version = tuple[str, int]
"""Uid and generation."""


class WholeObjects:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._texts: OrderedDict[Version, bytes] = OrderedDict()
        self._size_bytes = 0
        self._reads = SharedCalls[bytes]()

    async def job(self, job: ElasticJob) -> ElasticJob:
        """The job with the templates and variables that its user wrote, in objects of its own.

        Raises:
            Conflict: it is another by now.
        """
        if not any(is_cut(spec.template) for spec in job.spec.replica_specs.values()):
            return job
        written = await self._written(ELASTICJOBS, job)
        specs = {
            type_: spec.model_copy(update={"template": written["replicaSpecs"][type_]["template"]})
            if is_cut(spec.template)
            else spec
            for type_, spec in job.spec.replica_specs.items()
        }
        update = {"replica_specs": specs, "envs": written.get("envs") or {}}
        return job.model_copy(update={"spec": job.spec.model_copy(update=update)})

    async def check(self, check: NodeCheck) -> NodeCheck:
        """The same of a check."""
        if not is_cut(check.spec.template):
            return check
        written = await self._written(NODECHECKS, check)
        return check.model_copy(
            update={"spec": check.spec.model_copy(update={"template": written["template"]})}
        )

    async def _written(self, resource: Resource, cut: ElasticJob | NodeCheck) -> Object:
        """Its spec; the API server has validated it, which takes Python long."""
        version = cut.metadata.uid, cut.metadata.generation
        text = self._texts.get(version)
        if text is None:
            text = await self._reads.ask(version, lambda: self._ask(resource, cut, version))
        else:
            self._texts.move_to_end(version)
        spec: Object = parsed(text)
        return spec

    async def _ask(self, resource: Resource, cut: ElasticJob | NodeCheck, version: Version) -> bytes:
        found = await self._client.get(resource, cut.metadata.name, cut.metadata.namespace)
        metadata = found["metadata"]
        if (metadata.get("uid"), metadata.get("generation", 0)) != version:
            message = f"{resource.kind} {cut.metadata.name} has changed since it was seen"
            raise Conflict(409, "Conflict", message)
        text = orjson.dumps(found["spec"])
        self._remember(version, text)
        return text

    def _remember(self, version: Version, text: bytes) -> None:
        self._texts[version] = text
        self._size_bytes += len(text)
        while self._size_bytes > MOST_BYTES and len(self._texts) > 1:
            _, oldest = self._texts.popitem(last=False)
            self._size_bytes -= len(oldest)
