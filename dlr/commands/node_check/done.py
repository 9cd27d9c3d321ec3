"""Actions on the nodes that a check found faulty: cordoned, held back, or why neither.

The NodeCordon reconciler records them on the Nodes, shortly after the end of the check.
"""

from __future__ import annotations

from collections.abc import Collection

from crds import names
from crds.cordon import HELD_BACK, NOT_ENFORCED, read_acted
from crds.findings import Finding, Verdict
from crds.nodecheck import nodes_in
from dlr.job.lookup import find_nodes
from dlr.job.report import condition_of
from dlr.kube.api import EVENTS, JSON, Api
from dlr.kube.errors import ApiError
from dlr.kube.following import until_finished
from reconcilers.findings.record import unhealthy_taint

PATIENCE_SECONDS = 5.0
"""Time limit for the record: a cordon takes one write after the check's last."""
NOT_ALLOWED = "CordonNotAllowed"
IN_SERVICE = {"CordonHeld": HELD_BACK, "CordonReported": NOT_ENFORCED}
"""Action by the reason of the condition `ElasticSuspected`."""
UNKNOWN = "no cordon is recorded yet; see kubectl describe node"


def await_deeds(api: Api, check: JSON) -> dict[str, str]:
    """Return the action on each faulty node of a finished check; wait a few seconds for it."""
    faulty = nodes_in(check.get("status") or {}, Verdict.FAULTY)
    if not check["spec"].get("cordon", True):
        return dict.fromkeys(faulty, "not cordoned, as --no-cordon says")
    *_, done = until_finished(
        lambda: _deeds(api, check, faulty),
        lambda done: len(done) == len(faulty),
        within_seconds=PATIENCE_SECONDS,
    )
    return dict.fromkeys(faulty, UNKNOWN) | done


def _deeds(api: Api, check: JSON, faulty: Collection[str]) -> dict[str, str]:
    """Return the actions on faulty nodes that are recorded by now."""
    if not faulty:
        return {}
    try:
        refused = _refused(api, check)
        found = {node["metadata"]["name"]: deed(node, check, refused) for node in find_nodes(api, faulty)}
    except ApiError as error:
        return dict.fromkeys(faulty, f"whether it is cordoned cannot be seen: {error}")
    return {name: text for name in faulty if (text := found.get(name, "the node is gone"))}


def deed(node: JSON, check: JSON, refused: bool) -> str:
    """Return the action on one node; empty before it is recorded.

    Args:
        check: the finished NodeCheck that found the node faulty.
        refused: whether an Event reports that the check's namespace may not cordon nodes.
    """
    acted = read_acted(node)
    if acted is not None and _is_of(acted, check):
        if acted.healthy:
            return "not cordoned: a later check passed it"
        return "not cordoned: its taint was removed by hand" if unhealthy_taint(node) is None else "cordoned"
    suspected = condition_of(node, names.CONDITION_SUSPECTED, "True")
    if suspected.get("reason") in IN_SERVICE:
        return IN_SERVICE[suspected["reason"]]
    if refused:
        namespace = check["metadata"]["namespace"]
        return f"not cordoned: namespace {namespace} lacks the label {names.LABEL_MAY_CORDON}=true"
    return ""


def _is_of(acted: Finding, check: JSON) -> bool:
    """Whether the action is due to this check, or to a newer finding."""
    metadata, ended = check["metadata"], check["status"].get("completionTime") or ""
    newer = acted.time.strftime("%Y-%m-%dT%H:%M:%SZ") >= ended
    return acted.source == f"{metadata['namespace']}/{metadata['name']}" or newer


def _refused(api: Api, check: JSON) -> bool:
    chosen = f"reason={NOT_ALLOWED},involvedObject.uid={check['metadata']['uid']}"
    return bool(api.find(EVENTS, field_selector=chosen))
