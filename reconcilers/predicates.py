"""Which changes wake a reconciler, and which do not concern it."""

from __future__ import annotations

from typing import Any

from controller.store import Change
from crds.grouping import is_grouped
from reconcilers.cordon.reconciler import cordon_view
from reconcilers.nodecheck.claims import WAITING_FOR_AGENTS, WAITING_FOR_CHECK
from reconcilers.nodecheck.finished import is_finished
from reconcilers.observed.trust import may_cordon


def cordon_label_changes(change: Change) -> bool:
    """The Namespace's may-cordon label changed. That is rare, so every node is looked at."""
    return may_cordon(change.old) != may_cordon(change.new)


def appears(change: Change) -> bool:
    """It was not known, or another of its name was. Who was looked at before had nothing to go by."""
    old, new = change.old, change.new
    return new is not None and (old is None or old["metadata"]["uid"] != new["metadata"]["uid"])


def goes(change: Change) -> bool:
    """What was there is deleted."""
    return change.new is None


def begins_or_ends(change: Change) -> bool:
    """A job does not follow the rounds of its checks."""
    return _ending(change.old) != _ending(change.new)


def plans_otherwise(change: Change) -> bool:
    """A plan is new, changed or gone, or has its verdict."""
    return _planned(change.old) != _planned(change.new)


def finishes(change: Change) -> bool:
    """A check's own workers are released by its end."""
    return _finished(change.old) != _finished(change.new)


def becomes_ready_or_not(change: Change) -> bool:
    """The node's Ready condition changed. Workers go by this alone; kubelets write often."""
    return _readiness(change.old) != _readiness(change.new)


def more_than_status(change: Change) -> bool:
    """What is wanted of an object, or that it has come to its end; of a job that grows by itself, what it was
    asked for, which its minimum follows, and which is known a write after its count."""
    return _wanted(change.old) != _wanted(change.new)


def halts_or_goes_on(change: Change) -> bool:
    """What a job's workers go by. The counts of its status follow their Pods, and lead back to nobody."""
    return _halted(change.old) != _halted(change.new)


def more_than_progress(change: Change) -> bool:
    """Steps are reported every few seconds by every worker, and decide nothing about a job.

    A checkpoint may: a world that is to grow can wait for it. And the first step of a round says that a job
    trains (again).
    """
    return _without_steps(change.old) != _without_steps(change.new)


def more_than_the_agents_report(change: Change) -> bool:
    """A worker's Pod does not depend on what its agent says."""
    return _without_report(change.old) != _without_report(change.new)


def more_than_an_agents_later_reports(change: Change) -> bool:
    """The agent's first report, or more. From then on its silence counts: its Lease may never be renewed."""
    return _speaker(change.old) != _speaker(change.new) or more_than_the_agents_report(change)


def more_of_an_answer(change: Change) -> bool:
    """What a check wants to know of a worker: where its Pod is, how it is, and what its agent found out."""
    return _voice(change.old) != _voice(change.new)


def more_of_a_jobs_checks(change: Change) -> bool:
    """Which check the job carries out, whether it still has a world, and whether it has ended."""
    return _part_in_checks(change.old) != _part_in_checks(change.new)


def more_of_a_grouped_job(change: Change) -> bool:
    """A job with replica groups, or one that was."""
    return any(each is not None and is_grouped(each) for each in (change.old, change.new))


def more_of_a_group(change: Change) -> bool:
    """What a job goes by of its replica group: world, progress of the processes, troubles, end, and spec."""
    return _part_in_groups(change.old) != _part_in_groups(change.new)


def more_of_a_puller(change: Change) -> bool:
    """What a job goes by of a worker of its groups that pulls shards: its life, and what it asks for."""
    return _part_in_shards(change.old) != _part_in_shards(change.new)


def makes_way(change: Change) -> bool:
    """A check has finished, is gone, or is through with some of its nodes: others may begin."""
    old, new = change.old, change.new
    if old is None:
        return False
    return new is None or is_finished(new) or _left_behind(old) != _left_behind(new)


def begins_to_wait(change: Change) -> bool:
    """A check begins to wait for others, or for its agents: those that hold its nodes may have to leave."""
    new = _waits_for(change.new)
    return new is not None and new != _waits_for(change.old)


def more_than_a_renewal(change: Change) -> bool:
    """Agents renew their Leases every few seconds. Who waits for one that does not, looks when it is due."""
    return _holder(change.old) != _holder(change.new)


def more_than_a_heartbeat(change: Change) -> bool:
    """Kubelets write every Node's status every few minutes or seconds."""
    return cordon_view(change.old) != cordon_view(change.new)


def _holder(lease: dict[str, Any] | None) -> tuple[object, ...] | None:
    if lease is None:
        return None
    spec = lease.get("spec", {})
    return lease["metadata"]["uid"], spec.get("holderIdentity"), "renewTime" in spec


def _finished(check: dict[str, Any] | None) -> bool:
    return check is not None and is_finished(check)


def _readiness(node: dict[str, Any] | None) -> tuple[object, ...] | None:
    if node is None:
        return None
    conditions = node.get("status", {}).get("conditions", ())
    return node["metadata"]["uid"], [c["status"] for c in conditions if c["type"] == "Ready"]


def _generation(obj: dict[str, Any]) -> tuple[object, ...]:
    """Stands for the spec, which may have 1 MB, or be nested too deeply to be compared."""
    return obj["metadata"]["uid"], obj["metadata"].get("generation")


def _wanted(obj: dict[str, Any] | None) -> tuple[object, ...] | None:
    if obj is None:
        return None
    said = [obj["metadata"].get(key) for key in ("labels", "ownerReferences", "deletionTimestamp")]
    status = obj.get("status", {})
    asked_for = ((status.get("scaling") or {}).get("opportunity") or {}).get("base")
    return _generation(obj), status.get("phase") in ("Succeeded", "Failed"), asked_for, *said


def _halted(job: dict[str, Any] | None) -> tuple[object, ...] | None:
    if job is None:
        return None
    return _generation(job), job.get("status", {}).get("phase"), job["metadata"].get("deletionTimestamp")


def _without_report(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    """Spec, status and deletion of an ElasticWorker, but for what its agent says."""
    if worker is None:
        return None
    status = {k: v for k, v in worker.get("status", {}).items() if k != "agent"}
    return worker["spec"], status, worker["metadata"].get("deletionTimestamp")


def _speaker(worker: dict[str, Any] | None) -> str | None:
    """The Pod whose agent reports."""
    return ((worker or {}).get("status", {}).get("agent") or {}).get("podUid")


_OF_GROUPS = (
    *("phase", "reason", "message", "replicaGroup", "restarts", "replicas", "replicaStatuses"),
    *("warnings", "lastFailure"),
)
_OF_WORLDS = ("round", "phase", "brokenRound", "masterAddress", "masterPort")


def _part_in_groups(group: dict[str, Any] | None) -> tuple[object, ...] | None:
    if group is None:
        return None
    status = group.get("status") or {}
    world = status.get("rendezvous") or {}
    told, formed = (status.get(field) for field in _OF_GROUPS), (world.get(field) for field in _OF_WORLDS)
    metadata = (
        group["metadata"].get(key) for key in ("generation", "labels", "annotations", "deletionTimestamp")
    )
    conditions = [(each["type"], each["status"], each["reason"]) for each in status.get("conditions") or ()]
    return *told, *formed, conditions, (status.get("goodput") or {}).get("ratio"), *metadata


def _without_steps(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    """Returns the worker; of its agent's progress only the last checkpoint, the rounds that have any, where
    the loss stopped being a number, what a round resumed from, and its part in the replica groups."""
    report = (worker or {}).get("status", {}).get("agent") or {}
    quiet = (
        "progress",
        "rounds",
        "series",
        "usage",
        "memory",
        "shards",
        "askedStacks",
        "profile",
        "replicas",
    )
    rest = {k: v for k, v in report.items() if k not in quiet}
    rounds = [(told["round"], told.get("nonFiniteStep")) for told in report.get("rounds") or ()]
    saved = (report.get("progress") or {}).get("checkpointStep")
    resumed, asked = (report.get("memory") or {}).get("resumed"), _asked_of_shards(report)
    replicas = {k: v for k, v in (report.get("replicas") or {}).items() if k not in ("version", "step")}
    return _without_report(worker), rest, saved, rounds, resumed, asked, replicas


def _part_in_shards(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    report = (worker or {}).get("status", {}).get("agent") or {}
    return (_without_report(worker), _asked_of_shards(report)) if report.get("shards") else None


def _asked_of_shards(report: dict[str, Any]) -> list[dict[str, Any]]:
    """How far a worker is with its lease matters only when it wants another, or lets go of it."""
    said = report.get("shards") or ()
    return [
        each if each.get("wants") or each.get("leaves") else {k: v for k, v in each.items() if k != "rest"}
        for each in said
    ]


def _planned(plan: dict[str, Any] | None) -> tuple[object, ...] | None:
    if plan is None:
        return None
    status, metadata = plan.get("status", {}), plan["metadata"]
    return _generation(plan), status.get("phase"), metadata.get("deletionTimestamp")


def _voice(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    if worker is None:
        return None
    status = worker.get("status", {})
    report = status.get("agent") or {}
    said = [report.get(key) for key in ("incarnation", "podUid", "state", "check")]
    known = [status.get(key) for key in ("observedIncarnation", "phase", "podUid", "nodeName", "conditions")]
    return worker["spec"]["incarnation"], worker["metadata"].get("deletionTimestamp"), *said, *known


def _part_in_checks(job: dict[str, Any] | None) -> tuple[object, ...] | None:
    if job is None:
        return None
    status = job.get("status", {})
    return status.get("activeCheck"), status.get("phase"), (status.get("rendezvous") or {}).get("phase")


def _ending(check: dict[str, Any] | None) -> tuple[object, ...] | None:
    """What a job goes by: whether the check waits for another or has finished, the verdicts, the deletion."""
    if check is None:
        return None
    status = check.get("status", {})
    waits = _waits_for(check) == WAITING_FOR_CHECK
    return status.get("phase"), waits, status.get("nodeResults"), check["metadata"].get("deletionTimestamp")


def _waits_for(check: dict[str, Any] | None) -> str | None:
    """The reason for which a check waits, of those that have to do with other checks."""
    conditions = (check or {}).get("status", {}).get("conditions") or ()
    reasons = (c["reason"] for c in conditions if (c["type"], c["status"]) == ("Running", "False"))
    return next((r for r in reasons if r in (WAITING_FOR_CHECK, WAITING_FOR_AGENTS)), None)


def _left_behind(check: dict[str, Any]) -> tuple[object, ...]:
    """The nodes that an unfinished check is through with."""
    status = check.get("status", {})
    entries = (len(status.get(key) or ()) for key in ("withdrawn", "nodeResults"))
    return *entries, status.get("furtherNodes")
