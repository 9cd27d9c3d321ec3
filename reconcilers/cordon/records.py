"""Keeps on each Node what its checks gave: its record, and how fast its class of hardware was at first.

Apart from the cordon, which looks at one node after the other: after a check of ten thousand nodes each of
them is written to.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES
from crds import names
from reconcilers.cordon.verdicts import Verdicts
from reconcilers.nodecheck.record import CheckResult, read_record, with_results, write_record
from reconcilers.nodecheck.reference import Reference, read_reference, write_reference


class NodeRecords:
    """What the checks that count say of single nodes, beside what the Nodes keep already."""

    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts

    def of(self, raw: dict[str, Any]) -> list[CheckResult]:
        """A raw Node's record, with what checks have found since it was written."""
        new = [
            result
            for result in self._verdicts.results(raw["metadata"]["name"])
            if result.time >= created_at(raw)
        ]
        return with_results(read_record(raw), new)

    def reference_of(self, raw: dict[str, Any]) -> Reference | None:
        """How fast the class of a raw Node was at first.

        It is not renewed while the hardware is of that class, so that a class which gets slower over time
        does not take its checks along.
        """
        found = [
            reference
            for done, reference in self._verdicts.references(raw["metadata"]["name"])
            if done.ended >= created_at(raw)
        ]
        known, new = read_reference(raw), max(found, key=lambda reference: reference.time, default=None)
        same = known is not None and (new is None or known.hardware_class == new.hardware_class)
        return known if same else new


class NodeRecordReconciler(Reconciler):
    """One write for each node that a check has tested."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._nodes = cache.store(NODES)
        self._records = NodeRecords(Verdicts(cache))

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        annotations = {}
        record, reference = self._records.of(raw), self._records.reference_of(raw)
        if record != read_record(raw):
            annotations[names.ANNOTATION_RECORD] = write_record(record)
        if reference is not None and reference != read_reference(raw):
            annotations[names.ANNOTATION_REFERENCE] = write_reference(reference)
        if annotations:
            # Nobody else writes these, so all that may not have changed meanwhile is whose name it is.
            patch = {"metadata": {"uid": raw["metadata"]["uid"], "annotations": annotations}}
            await self._client.patch(NODES, request.name, patch)
        return Result()


def created_at(node: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(node["metadata"]["creationTimestamp"])
