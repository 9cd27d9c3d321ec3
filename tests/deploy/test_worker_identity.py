"""The admission policy's CEL: a worker speaks for itself alone. Evaluated here; on a server in test_rights.py."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

import deploy
from localcluster.apiserver.rbac import Attributes, rule_allows
from localcluster.cel import compile_expression
from reconcilers.worker.access import rules_of

JSON = dict[str, Any]

POD_NAME = "authentication.kubernetes.io/pod-name"
WORKER_ACCOUNT = "system:serviceaccount:default:dlr-uid-of-digits"
CONTROLLER = "system:serviceaccount:dlr-system:dlr-controller"

ELASTIC_WORKER = {
    "metadata": {"name": "digits-worker-0"},
    "spec": {"incarnation": 2},
    "status": {"phase": "Running", "agent": {"state": "Ready"}},
}
OWNER = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticWorker",
    "name": "digits-worker-0",
    "uid": "u",
}
LEASE = {"metadata": {"name": "digits-worker-0", "ownerReferences": [OWNER]}, "spec": {}}
LEADER_LEASE = {"metadata": {"name": "some-leader"}, "spec": {"holderIdentity": "someone"}}


TRAINER = "system:serviceaccount:default:trainer"
"""An account that a template names, so that the controller binds it to the Role of its job."""
WORKER_RULES = rules_of({"kind": "ElasticJob", "metadata": {"name": "digits"}, "spec": {}})
(CONTROLLER_RULES,) = (
    role["rules"]
    for role in deploy.documents()
    if (role["kind"], role["metadata"]["name"]) == ("ClusterRole", "dlr-controller")
)
LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}


def user(pod: str | None, name: str = WORKER_ACCOUNT) -> JSON:
    return {"username": name} | ({"extra": {POD_NAME: [pod]}} if pod else {})


def changed(obj: JSON, **changes: Any) -> JSON:
    """A copy with `part__field=value` set."""
    copied = copy.deepcopy(obj)
    for path, value in changes.items():
        part, field = path.split("__")
        copied.setdefault(part, {})[field] = value
    return copied


def refusals(
    policy: str, who: JSON, old: JSON, new: JSON, *, rules: Sequence[JSON] = WORKER_RULES
) -> list[str]:
    """The messages of what does not hold, as the API server would find them.

    Args:
        rules: what `who` is allowed.
    """
    spec = next(
        d["spec"]
        for d in deploy.documents()
        if d["metadata"]["name"] == policy and "matchConditions" in d["spec"]
    )
    lease = {"group": "coordination.k8s.io", "resource": "leases", "name": new["metadata"]["name"]}
    known: JSON = {
        "request": {"userInfo": who, "namespace": "default"},
        "object": new,
        "oldObject": old,
        "authorizer": {"requestResource": lease},
    }

    def may(asked: dict[str, str], verb: str) -> bool:
        return any(rule_allows(rule, Attributes(verb, **asked)) for rule in rules)

    def value(expression: str) -> Any:
        return compile_expression(expression).evaluate(known, {"check": may})

    if not all(value(condition["expression"]) for condition in spec["matchConditions"]):
        return []
    known["variables"] = {each["name"]: value(each["expression"]) for each in spec["variables"]}
    return [
        rule.get("message") or value(rule["messageExpression"])
        for rule in spec["validations"]
        if not value(rule["expression"])
    ]


def status_refusals(who: JSON, new: JSON, old: JSON = ELASTIC_WORKER) -> list[str]:
    return refusals("dlr-worker-status", who, old, new)


def lease_refusals(
    who: JSON, new: JSON, old: JSON = LEASE, *, rules: Sequence[JSON] = WORKER_RULES
) -> list[str]:
    return refusals("dlr-worker-lease", who, old, new, rules=rules)


def test_worker_may_write_its_own_report() -> None:
    assert (
        status_refusals(
            user("digits-worker-0-2"), changed(ELASTIC_WORKER, status__agent={"state": "Running"})
        )
        == []
    )
    first = {key: value for key, value in ELASTIC_WORKER.items() if key != "status"}
    assert status_refusals(user("digits-worker-0-2"), changed(first, status__agent={}), first) == []


@pytest.mark.parametrize("pod", ["digits-worker-1-2", "digits-worker-0-1", "digits-worker-0-22", None])
def test_nobody_else_may_write_it(pod: str | None) -> None:
    report = changed(ELASTIC_WORKER, status__agent={"state": "Failed"})
    assert status_refusals(user(pod), report) == [
        "only the Pod digits-worker-0-2 may report for this ElasticWorker"
    ]


@pytest.mark.parametrize(
    ("pod", "allowed"),
    [
        ("lab-check-0-1", True),
        ("lab-check-1-1", False),
        ("lab-worker-0-1", False),
        ("digits-worker-0-2", False),
    ],
)
def test_a_check_s_worker_is_held_to_its_own_report_and_lease_like_a_job_s(pod: str, allowed: bool) -> None:
    mine = changed(ELASTIC_WORKER, metadata__name="lab-check-0", spec__incarnation=1)
    report = changed(mine, status__agent={"state": "Ready", "check": {"uid": "u", "local": []}})
    assert (status_refusals(user(pod), report, mine) == []) is allowed
    assert status_refusals(user(pod), changed(mine, status__phase="Failed"), mine)
    lease = {
        "metadata": {"name": "lab-check-0", "ownerReferences": [OWNER | {"name": "lab-check-0"}]},
        "spec": {},
    }
    renewed = changed(lease, spec__renewTime="now", spec__holderIdentity=pod)
    assert (lease_refusals(user(pod), renewed, lease) == []) is allowed


def test_worker_may_not_write_what_the_controller_says() -> None:
    me = user("digits-worker-0-2")
    (refusal,) = status_refusals(me, changed(ELASTIC_WORKER, status__phase="Succeeded"))
    assert "status.agent and nothing else" in refusal
    (refusal,) = status_refusals(me, changed(ELASTIC_WORKER, status__podName="mine"))
    assert "nothing else" in refusal
    without = {**ELASTIC_WORKER, "status": {"agent": {}}}
    (refusal,) = status_refusals(me, without)
    assert "remove nothing else" in refusal


@pytest.mark.parametrize("name", [CONTROLLER, "kubernetes-admin"])
def test_controller_and_people_are_left_to_rbac_for_reports(name: str) -> None:
    assert status_refusals(user(None, name), changed(ELASTIC_WORKER, status__phase="Failed")) == []


@pytest.mark.parametrize("lease", [LEASE, LEADER_LEASE])
def test_the_controller_does_not_use_the_right_to_leases_that_it_gives_to_workers(lease: JSON) -> None:
    me = user("dlr-controller-7d9-x2", CONTROLLER)
    taken = changed(lease, spec__holderIdentity="dlr-controller-7d9-x2")
    assert lease_refusals(me, taken, lease, rules=CONTROLLER_RULES)


def test_the_controller_renews_the_lease_that_it_leads_by() -> None:
    own = {"metadata": {"name": "dlr-controller"}, "spec": {}}
    rules = [*CONTROLLER_RULES, LEASES | {"verbs": ["get", "update"], "resourceNames": ["dlr-controller"]}]
    renewed = changed(own, spec__holderIdentity="dlr-controller-7d9-x2")
    assert lease_refusals(user("dlr-controller-7d9-x2", CONTROLLER), renewed, own, rules=rules) == []


def test_worker_may_renew_its_own_lease() -> None:
    renewed = changed(LEASE, spec__renewTime="now", spec__holderIdentity="digits-worker-0-2")
    assert lease_refusals(user("digits-worker-0-2"), renewed) == []


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_worker_may_not_mark_its_lease(field: str) -> None:
    me, mark = user("digits-worker-0-2"), {f"metadata__{field}": {"a": "b"}}
    for old, new in (
        (LEASE, changed(LEASE, **mark)),
        (changed(LEASE, **mark), LEASE),
        (changed(LEASE, **mark), changed(LEASE, **{f"metadata__{field}": {"a": "c"}})),
    ):
        assert lease_refusals(me, new, old) == [
            "a worker may renew its Lease, not change its labels or annotations"
        ]
    marked = changed(LEASE, **mark)
    assert lease_refusals(me, changed(marked, spec__renewTime="now"), marked) == []


@pytest.mark.parametrize(
    "pod", ["digits-worker-1-2", "digits-worker-0-worker-1-2", "x-digits-worker-0-2", None]
)
def test_worker_may_not_touch_a_neighbour_s_lease(pod: str | None) -> None:
    assert any("its own ElasticWorker" in text for text in lease_refusals(user(pod), LEASE))


@pytest.mark.parametrize("account", [WORKER_ACCOUNT, TRAINER])
@pytest.mark.parametrize("pod", ["digits-worker-0-2", "notebook-0", None])
def test_nobody_takes_over_other_leases_by_way_of_the_workers_role(account: str, pod: str | None) -> None:
    taken = changed(LEADER_LEASE, spec__holderIdentity=pod or "me")
    assert lease_refusals(user(pod, account), taken, LEADER_LEASE)


@pytest.mark.parametrize(
    "rules",
    [
        [LEASES | {"verbs": ["get", "create", "update"]}],
        [LEASES | {"verbs": ["get", "create", "patch"]}],
        [*WORKER_RULES, LEASES | {"verbs": ["update"], "resourceNames": ["some-leader"]}],
        [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    ],
)
def test_a_right_to_a_leader_s_lease_from_another_role_stays(rules: list[JSON]) -> None:
    leader = user("leader-pod", "system:serviceaccount:default:leader")
    taken = changed(LEADER_LEASE, spec__holderIdentity="leader-pod")
    assert lease_refusals(leader, taken, LEADER_LEASE, rules=rules) == []


def test_the_cluster_s_own_controllers_may_orphan_a_worker_s_lease() -> None:
    collector = user(None, "system:serviceaccount:kube-system:generic-garbage-collector")
    everything = [LEASES | {"verbs": ["get", "list", "watch", "patch", "update", "delete"]}]
    orphaned = changed(LEASE, metadata__ownerReferences=[])
    assert lease_refusals(collector, orphaned, rules=everything) == []


def test_worker_may_not_pose_as_another_or_keep_its_lease_from_being_collected() -> None:
    me = user("digits-worker-0-2")
    (refusal,) = lease_refusals(me, changed(LEASE, spec__holderIdentity="digits-worker-0-3"))
    assert "its own Pod's name" in refusal
    for change in ({"metadata__ownerReferences": []}, {"metadata__finalizers": ["mine/stay"]}):
        assert any("from being deleted" in text for text in lease_refusals(me, changed(LEASE, **change)))
