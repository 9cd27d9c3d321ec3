"""Keeps on each Node what its checks gave: its record, and how fast its class of hardware was at first.

Apart from the cordon, which looks at one node after the other: after a check of ten thousand nodes each of
them is written to.
"""

from __future__ import annotations

from controller.cache import Cache
from controller.client import Client
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES
from crds import names
from reconcilers.cordon.findings import NodeFindings
from reconcilers.nodecheck.record import read_record, write_record
from reconcilers.nodecheck.reference import read_reference, write_reference


class NodeRecordReconciler(Reconciler):
    """One write for each node that a check has tested."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._nodes = cache.store(NODES)
        self._findings = cache.shared(NodeFindings)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        annotations = {}
        record, reference = self._findings.record_of(raw), self._findings.reference_of(raw)
        if record != read_record(raw):
            annotations[names.ANNOTATION_RECORD] = write_record(record)
        if reference is not None and reference != read_reference(raw):
            annotations[names.ANNOTATION_REFERENCE] = write_reference(reference)
        if annotations:
            # Nobody else writes these, so all that may not have changed meanwhile is whose name it is.
            patch = {"metadata": {"uid": raw["metadata"]["uid"], "annotations": annotations}}
            await self._client.patch(NODES, request.name, patch)
        return Result()
