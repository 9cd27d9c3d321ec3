"""Findings on single nodes: from finished NodeChecks, from ended workers, and from the Nodes' own records.

`reconcilers/findings/faulty.py` has the rule which decide, and `reconcilers/observed/trust.py` which count.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.slices import Slices
from crds.cordon import read_acted
from crds.elasticworker import ElasticWorker, ExitClass
from crds.findings import Finding
from reconcilers.cordon.policy import newest
from reconcilers.findings.faulty import (
    decision_of,
    decisions_of,
    finding_of_worker,
    last_error,
    suspicion_of,
)
from reconcilers.findings.finished import BY_VERDICT, FinishedChecks
from reconcilers.findings.machine import created_at
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS


class NodeFindings:
    """Reads the findings on nodes from the caches."""

    def __init__(self, cache: Cache) -> None:
        self._checks = cache.store(NODECHECKS)
        self._workers = cache.store(ELASTICWORKERS)
        self._finished = cache.shared(FinishedChecks)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)
        self._trust = Trust(cache)

    def deciding(self, raw: dict[str, Any], known: Finding | None = None) -> list[Finding]:
        """Return the findings on a raw Node that count for the cluster and decide.

        Args:
            known: the last finding that was acted upon, whose source may be gone.
        """
        node = raw["metadata"]["name"]
        reports = self._trust.counting(self._workers.by_index(BY_VERDICT, node), CLUSTER)
        accused = [finding_of_worker(worker, raw) for worker in self._parse_worker.readable(reports)]
        errors = [finding for finding in accused if finding is not None]
        after = last_error([*errors, *([known] if known is not None else [])])
        return [*decisions_of(self._finished.of_machine(raw), node, after), *errors]

    def accused_at(self, raw: dict[str, Any]) -> datetime | None:
        """Return the time of the deciding finding on a raw Node; None if that is not against it."""
        acted = read_acted(raw)
        found = self.deciding(raw, acted)
        decides = newest(found if acted is None else [acted, *found])
        return None if decides is None or decides.healthy else decides.time

    async def ignored(self, raw: dict[str, Any]) -> list[Finding]:
        """Return the findings that would decide, but do not count for the cluster."""
        node, created = raw["metadata"]["name"], created_at(raw)
        slices, found = Slices(), list[Finding | None]()
        for done in self._finished.ignored_on(node):
            if done.is_of(created):
                found.append(decision_of(done, node))
            await slices.pause()
        for accuser in self._workers.by_index(BY_VERDICT, node):
            if not self._trust.counts(accuser["metadata"]["namespace"], CLUSTER):
                found += (finding_of_worker(worker, raw) for worker in self._parse_worker.readable([accuser]))
            await slices.pause()
        return [finding for finding in found if finding is not None]

    def suspicions(self, raw: dict[str, Any]) -> list[Finding]:
        """Return the findings of checks that could not judge a raw Node, or found it slow."""
        found = (suspicion_of(done, raw["metadata"]["name"]) for done in self._finished.of_machine(raw))
        return [finding for finding in found if finding is not None]

    def source(self, finding: Finding) -> dict[str, Any] | None:
        """Return the NodeCheck or ElasticWorker of a finding, if it still exists."""
        store = self._checks if finding.kind == NODECHECKS.kind else self._workers
        return store.get(finding.namespace, finding.name)


def failed_nodes(worker: dict[str, Any]) -> list[str]:
    """Index function of `BY_VERDICT`: the node that an ElasticWorker accuses, if it does."""
    end = worker.get("status", {}).get("lastExit") or {}
    accused = end.get("exitClass") == ExitClass.HARDWARE_ERROR and end.get("nodeName")
    return [end["nodeName"]] if accused else []
