"""The reconciler of Nodes' records, which later checks read (`reconcilers/findings/record.py`)."""

from __future__ import annotations

from controller.reconciler import Request, Result
from controller.resources import NODES
from crds import names
from reconcilers.findings.finished import FinishedChecks
from reconcilers.findings.record import read_record, write_record
from reconcilers.findings.reference import read_reference, write_reference
from reconcilers.runtime.tools import Tools, WithTools


class NodeRecordReconciler(WithTools):
    """Keeps on each Node its record, and the first speed of its hardware class.

    Several work at a time: a check of 10,000 nodes writes to each of them.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._checks = tools.cache.shared(FinishedChecks)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        annotations = {}
        record, reference = self._checks.record_of(raw), self._checks.reference_of(raw)
        if record != read_record(raw):
            annotations[names.ANNOTATION_RECORD] = write_record(record)
        if reference is not None and reference != read_reference(raw):
            annotations[names.ANNOTATION_REFERENCE] = write_reference(reference)
        if annotations:
            # Nobody else writes these annotations, so the write only has to be for the same Node.
            patch = {"metadata": {"uid": raw["metadata"]["uid"], "annotations": annotations}}
            await self._client.patch(NODES, request.name, patch)
        return Result()
