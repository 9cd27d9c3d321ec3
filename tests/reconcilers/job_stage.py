"""A job, its workers and its checks, in one line each."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import MOST_NAMED, NodeCheck
from reconcilers.findings.finished import FinishedCheck
from reconcilers.nodecheck.job_checks import JobChecks
from tests.reconcilers.build import NOW, job, node_sets, report, worker

ALWAYS = NOW - timedelta(days=365)


def checked_job(replicas: int = 3, policy: Mapping[str, Any] | None = None, **spec: Any) -> ElasticJob:
    return job(replicas=replicas, nodeCheck={"enabled": True} | dict(policy or {}), **spec)


def at(
    index: int,
    node: str,
    incarnation: int = 1,
    state: AgentState = AgentState.READY,
    observed_round: int = 0,
    **status: Any,
) -> ElasticWorker:
    """A worker on a node, whose agent speaks."""
    said = report(index, state, observed_round, incarnation=incarnation, pod_uid=f"uid-{index}-{incarnation}")
    return worker(index, incarnation=incarnation, **({"nodeName": node, "agent": said.to_wire()} | status))


def job_check(
    number: int = 1,
    phase: str | None = "Succeeded",
    of: Sequence[ElasticWorker] = (),
    workers: Sequence[int] | None = None,
    ended: datetime = NOW,
    **verdicts: str,
) -> NodeCheck:
    """A check of digits; `verdicts` by node, Healthy where none is given."""
    nodes = {w.status.node_name or "": w for w in of}
    results = [{"node": node, "verdict": verdicts.get(node, "Healthy")} for node in nodes]
    name = f"digits-check-{number}"
    return NodeCheck.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": ended},
            "spec": {"jobName": "digits"} | ({} if workers is None else {"workers": list(workers)}),
            "status": {
                "phase": phase,
                "nodes": list(nodes),
                "workers": [w.spec.index for w in nodes.values()],
                "incarnations": [w.spec.incarnation for w in nodes.values()],
                "nodeResults": results[:MOST_NAMED] if phase == "Succeeded" else [],
                "nodeSets": node_sets(list(nodes), verdicts),
                "faultyNodes": [r["node"] for r in results if r["verdict"] == "Faulty"],
                "completionTime": ended if phase in ("Succeeded", "Failed") else None,
            },
        }
    )


def all_checks(*checks: NodeCheck, nodes: Sequence[str] = string.ascii_lowercase) -> JobChecks:
    of_job = tuple(c for c in checks if c.spec.job_name == "digits")
    finished = [FinishedCheck(c) for c in checks if c.status.phase in ("Succeeded", "Failed")]
    on_node: dict[str, list[FinishedCheck]] = {}
    for done in finished:
        for node in done.verdicts:
            on_node.setdefault(node, []).append(done)
    return JobChecks(
        of_job=of_job,
        finished=tuple(done for done in finished if done.check in of_job),
        on_node=on_node,
        nodes_created=dict.fromkeys(nodes, ALWAYS),
    )
