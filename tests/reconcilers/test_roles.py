"""Jobs with parameter servers: tasks, versions, whose end means what, and the Pods of all roles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.cluster_status import ClusterStatus
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit, WorkerPhase
from crds.job_status import FailureBudget
from crds.phases import JobPhase
from reconcilers.failure.endings import exhausted_workers
from reconcilers.job.plan import JobPlan
from reconcilers.job.strategy import Strategies
from reconcilers.look import ObservedJob
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.slots import slots_of, wanted_slots, with_slots
from reconcilers.observed.workers import Workers
from reconcilers.roles import wiring
from reconcilers.roles.pods import RoleAssignment, cluster_fault, role_pod, service_of
from reconcilers.roles.progress import spare_workers
from reconcilers.roles.tasks import cluster_of, events, next_cluster
from reconcilers.runtime.acts import RequestVerb
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers import judging
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.judging import after, with_status

RUNS = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["dlr", "exec", "serve"]}]}}
COUNTS = {"chief": 1, "ps": 2, "worker": 2}
PLANS = Strategies()
wiring.add(PLANS)


def roles_job(counts: Mapping[str, int] = COUNTS, **more: Any) -> ElasticJob:
    specs = {type_: {"replicas": count, "template": RUNS} for type_, count in counts.items()}
    return job(replicaSpecs=specs, **more)


def member(
    type_: str, index: int = 0, phase: WorkerPhase = WorkerPhase.RUNNING, incarnation: int = 1, **status: Any
) -> ElasticWorker:
    made = worker(index, phase, incarnation, **status)
    name = f"digits-{type_}-{index}"
    return made.model_copy(
        update={
            "metadata": made.metadata.model_copy(update={"name": name, "uid": name}),
            "spec": made.spec.model_copy(update={"type": type_}),
            "status": made.status.model_copy(update={"pod_name": f"{name}-{incarnation}"}),
        }
    )


def all_of(counts: Mapping[str, int] = COUNTS) -> dict[tuple[str, int], ElasticWorker]:
    return {(type_, index): member(type_, index) for type_, count in counts.items() for index in range(count)}


def seen_of(of: ElasticJob, members: Mapping[Any, ElasticWorker]) -> ObservedJob:
    pods = {w.metadata.uid: None for w in members.values() if w.status.pod_name}
    return judging.seen_of(of, members.values(), pods=pods)


def looked_at(of: ElasticJob, members: Mapping[Any, ElasticWorker]) -> JobPlan:
    return PLANS.plan(seen_of(of, members), NOW)


# --- Tasks and versions -----------------------------------------------------------------------------------


def evolved(of: ElasticJob, members: Mapping[Any, ElasticWorker]) -> ElasticJob:
    return with_status(of, cluster=next_cluster(of, members))


def test_a_target_takes_its_sources_task_and_the_others_keep_theirs() -> None:
    first = evolved(roles_job(), all_of())
    moved = with_slots(first, {"ps": slots_of(first, "ps").moving([0], 2).moved(0)})
    members = all_of() | {("ps", 2): member("ps", 2)}
    cluster = next_cluster(moved, members)
    assert (cluster.version, cluster.tasks["ps"], cluster.to_wire()["tasks"]["ps"]) == (2, [2, 1], "2,1")
    (event,) = events(first.status.cluster, cluster)
    assert event.message == "version 2 of the cluster: ps 2 is new, ps 0 leaves"


def test_a_server_whose_worker_was_deleted_by_hand_comes_back_as_another_version() -> None:
    first = roles_job()
    begun = evolved(evolved(first, {}), {})
    assert begun.status.cluster is not None and begun.status.cluster.version == 1, "they are still to be made"
    running = evolved(begun, all_of())
    without = {slot: each for slot, each in all_of().items() if slot != ("ps", 1)}
    gone = evolved(evolved(running, without), without)
    assert gone.status.cluster is not None
    assert (gone.status.cluster.version, gone.status.cluster.lost) == (1, [1]), "the next one is waited for"
    back = next_cluster(gone, all_of())
    assert (back.version, back.incarnations, back.lost) == (2, [1, 1], [])
    (event,) = events(gone.status.cluster, back)
    assert event.message == "version 2 of the cluster: ps 1 gets another Pod"


phases = st.sampled_from([WorkerPhase.PENDING, WorkerPhase.RUNNING, WorkerPhase.FAILED])
moments = st.tuples(st.integers(1, 6), st.integers(0, 4), st.sets(st.integers(0, 8)), st.integers(0, 99))


@settings(max_examples=40)
@given(st.lists(moments, max_size=6), st.data())
def test_versions_only_rise_and_only_for_servers_and_a_wanted_slot_keeps_its_task_while_none_is_lost(
    history: list[tuple[int, int, set[int], int]], data: st.DataObject
) -> None:
    cluster: ClusterStatus | None = None
    for servers, workers, retired, seed in history:
        of = roles_job({"ps": servers, "worker": workers}, status={"retired": {"ps": sorted(retired)}})
        of = with_status(of, cluster=cluster)
        members = {
            ("ps", i): member("ps", i, data.draw(phases), 1 + (seed + i) % 3) for i in wanted_slots(of, "ps")
        }
        found = next_cluster(of, members)
        tasks = found.tasks["ps"]
        assert len(set(tasks)) == len(tasks) and set(tasks) <= set(wanted_slots(of, "ps"))
        assert set(found.tasks["worker"]) == set(wanted_slots(of, "worker"))
        assert len(found.incarnations) == len(tasks) and set(found.lost) <= set(tasks)
        if cluster is not None:
            before, is_same = cluster.tasks["ps"], found.incarnations == cluster.incarnations
            assert found.version - cluster.version == (tasks != before or not is_same)
            if len(tasks) >= len(before):
                stays = set(before) & set(wanted_slots(of, "ps"))
                assert all(tasks[place] == slot for place, slot in enumerate(before) if slot in stays)
        assert next_cluster(with_status(of, cluster=found), members) == found
        cluster = found
        ClusterStatus.model_validate(found.to_wire())


def test_a_server_that_is_one_too_many_stays_until_the_chief_has_the_version_without_it() -> None:
    counts = COUNTS | {"ps": 3}
    chief = member("chief", agent=report(state=AgentState.RUNNING, observed_round=1).to_wire())
    members = all_of(counts) | {("chief", 0): chief}
    known = evolved(roles_job(counts, status={"phase": "Running"}), members)
    of = known.model_copy(update={"spec": roles_job(COUNTS).spec})
    plans = []
    for seconds in (0, 1, 91):
        plans.append(PLANS.plan(seen_of(of, members), later(seconds)))
        of = after(of, plans[-1])
    assert of.status.cluster is not None and of.status.cluster.version == 2
    gone = [[act.name for act in plan.acts if act.verb is RequestVerb.DELETE] for plan in plans]
    assert gone == [[], [], ["digits-ps-2"]]


# --- The whole look ---------------------------------------------------------------------------------------


def test_a_job_with_roles_runs_without_a_world_and_restarts_only_for_what_it_needs() -> None:
    begun = roles_job(status={"phase": "Running"})
    job_of = after(begun, looked_at(begun, all_of()))
    assert job_of.status.rendezvous is None and job_of.status.phase is JobPhase.RUNNING
    assert job_of.status.cluster is not None and job_of.status.cluster.version == 1
    lost = WorkerExit(incarnation=1, exit_class=ExitClass.KILLED, message="gone", time=NOW).to_wire()
    for type_, phase, missing in (("worker", "Running", ""), ("ps", "Restarting", "not running: ps 1")):
        gone = all_of() | {(type_, 1): member(type_, 1, WorkerPhase.FAILED, lastExit=lost)}
        plan = looked_at(job_of, gone)
        then = after(job_of, plan)
        condition = condition_of(then.status.conditions, "WorldFormed")
        assert then.status.phase == phase and condition is not None and condition.message == missing
        assert then.status.message == missing
        relaunches = [act for act in plan.acts if act.body and "incarnation" in act.body.get("spec", {})]
        assert [act.name for act in relaunches] == [f"digits-{type_}-1"]


def test_the_chiefs_end_is_the_jobs_and_without_one_it_is_that_of_all_workers() -> None:
    def done(index: int) -> dict[str, Any]:
        return {"agent": report(index, AgentState.SUCCEEDED, 1).to_wire()}

    running = roles_job(status={"phase": "Running"})
    workers = all_of() | {("worker", i): member("worker", i, **done(i)) for i in range(2)}
    assert looked_at(running, workers).status_patch.get("phase") is None
    ended = looked_at(running, all_of() | {("chief", 0): member("chief", **done(0))})
    assert ended.status_patch["phase"] == "Succeeded"
    alone = roles_job({"ps": 1, "worker": 2}, status={"phase": "Running"})
    one = {key: w for key, w in workers.items() if key[0] != "chief" and key != ("ps", 1)}
    assert looked_at(alone, one).status_patch["phase"] == "Succeeded"
    assert looked_at(alone, one | {("worker", 1): member("worker", 1)}).status_patch.get("phase") is None


def spent(type_: str, index: int = 0) -> ElasticWorker:
    end = WorkerExit(incarnation=1, exit_class=ExitClass.USER_ERROR, message="bad", time=NOW)
    budget = FailureBudget(spent={"UserError": 9}, signature="UserError: bad", alike=9)
    more = {"lastExit": end.to_wire(), "failureBudget": budget.to_wire()}
    return member(type_, index, WorkerPhase.FAILED, **more)


@pytest.mark.parametrize(
    ("type_", "fails"), [("chief", True), ("ps", True), ("worker", False), ("evaluator", False)]
)
def test_a_spent_budget_fails_the_job_only_of_what_it_cannot_do_without(type_: str, fails: bool) -> None:
    of, members = roles_job(COUNTS | {"evaluator": 1}, status={"phase": "Running"}), all_of()
    members |= {("evaluator", 0): member("evaluator"), (type_, 0): spent(type_)}
    plan = looked_at(of, members)
    assert (after(of, plan).status.phase is JobPhase.FAILED) is fails
    workers = Workers(members.values())
    assert bool(exhausted_workers(workers, spare_workers(of, workers))) is not fails


def test_the_last_worker_is_not_spare() -> None:
    members = all_of() | {("worker", i): spent("worker", i) for i in range(2)}
    assert spare_workers(roles_job(), Workers(members.values())) == {}


# --- Pods, Service, plans ---------------------------------------------------------------------------------


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}


def test_pods_have_the_names_of_their_service_the_agent_and_their_task() -> None:
    of = evolved(roles_job(COUNTS | {"evaluator": 1}), all_of())
    server = member("ps", 1)
    pod = role_pod(of, server)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("digits-ps-1", "digits")
    service = service_of(of)
    assert service["metadata"]["name"] == "digits" and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    env = variables(pod)
    config = json.loads(env["TF_CONFIG"])
    assert config["task"] == {"type": "ps", "index": 1}
    assert config["cluster"]["ps"][1].startswith("digits-ps-1.digits.default.svc:")
    assert (env["DLR_CLUSTER_VERSION"], env["DLR_REPLICA_TYPE"]) == ("1", "ps")
    assert "PET_NNODES" not in variables(role_pod(of, member("worker")))
    assert RoleAssignment(server, {}, of).wants_agent
    assert "TF_CONFIG" not in variables(role_pod(of, member("ps", 7))), "it has no task yet"


@pytest.mark.parametrize(
    ("of_template", "policy"),
    [
        ({}, None),
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "None"}, "None"),
    ],
)
def test_pods_in_their_nodes_network_find_the_names_of_the_others(
    of_template: dict[str, Any], policy: str | None
) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy"""
    of = evolved(roles_job(COUNTS), all_of())
    of.spec.replica_specs["ps"].template["spec"].update(of_template)
    assert role_pod(of, member("ps", 1))["spec"].get("dnsPolicy") == policy


def test_the_roles_of_a_cluster_leave_by_themselves_and_their_logs_stay() -> None:
    def wait(
        counts: Mapping[str, int], type_: str, at: float = 0, *, pod_ended: bool = False
    ) -> float | None:
        of = roles_job(counts, status={"phase": "Succeeded", "completionTime": NOW, "startTime": NOW})
        return PLANS.assign(member(type_), {}, of).seconds_to_cleaning(pod_ended=pod_ended, now=later(at))

    assert wait(COUNTS, "chief", 99, pod_ended=True) is None
    assert wait(COUNTS, "ps") == 35
    assert wait({"worker": 1, "evaluator": 1}, "evaluator") == 0, "it has no agent"


def test_a_tf_config_of_the_users_own_is_kept_and_that_is_said() -> None:
    of = roles_job(envs={"TF_CONFIG": "mine"}, status={"phase": "Running"})
    env = variables(role_pod(of, member("ps")))
    assert (env["TF_CONFIG"], env["DLR_TF_CONFIG_KEPT"]) == ("mine", "1")
    plan = looked_at(of, all_of())
    (event,) = (event for event in plan.events if event.reason == "TFConfigKept")
    assert "TF_CONFIG is set by the user for type chief, ps, worker, and kept" in event.message


LONG = {"name": "wide-and-deep-" * 3, "namespace": "n" * 60, "uid": "u", "generation": 1}
MANY = {"chief": 1, "ps": 16, "worker": 1_000}


def long_named(counts: Mapping[str, int], **more: Any) -> ElasticJob:
    of = roles_job(counts, **more)
    return of.model_copy(update={"metadata": of.metadata.model_copy(update=LONG)})


def test_a_cluster_whose_addresses_do_not_fit_into_a_variable_is_refused_in_a_sentence() -> None:
    """execve(2) takes no variable of more than 128 KiB."""
    of = long_named(MANY)
    told = (
        "spec.replicaSpecs: the addresses of 1017 tasks do not fit into TF_CONFIG, which may have 120 KiB. Each "
        "has the job's name twice (42 characters), and its namespace's (60): shorten them, or request "
        "fewer workers"
    )
    assert cluster_fault(of) == ("chief", "PodInvalid", told)
    assert len(cluster_of(of).variables("worker", 999)["TF_CONFIG"]) > 128 * 1024
    assert cluster_fault(roles_job(MANY)) is None
    assert cluster_fault(long_named({"chief": 1, "ps": 16, "worker": 500})) is None
    assert cluster_fault(long_named(MANY, envs={"TF_CONFIG": "{}"})) is None, "it is the user's own"


def test_counts_of_more_tasks_than_can_be_told_are_refused_and_those_of_fewer_are_not() -> None:
    for before, asked, refuses in ((500, 1_000, True), (1_000, 900, False)):
        of = long_named({"chief": 1, "ps": 16, "worker": before})
        fault = PLANS.counts_fault(of, {"worker": asked})
        assert fault.startswith("the addresses of 1017") is refuses and bool(fault) is refuses
    assert PLANS.counts_fault(job(), {"worker": 10_000}) == ""


def test_who_comes_to_a_cluster_that_is_full_has_no_task_and_the_others_can_still_start() -> None:
    """An edit of the count that is refused only by what the job says of its Pods."""
    full = long_named({"chief": 1, "ps": 16, "worker": 500})
    known = next_cluster(full, {})
    of = long_named(MANY, status={"cluster": known.to_wire()})
    assert next_cluster(of, {}).tasks == known.tasks
    some = long_named({"chief": 1, "ps": 16, "worker": 501}, status={"cluster": known.to_wire()})
    assert next_cluster(some, {}).tasks["worker"] == list(range(501))


def test_a_relaunched_slot_prefers_its_last_good_node() -> None:
    def wishes(excluded: list[str], incarnation: int = 2) -> list[tuple[str, str]]:
        lives = [{"incarnation": n, "nodeName": f"node-{n}", "createdAt": NOW} for n in range(1, incarnation)]
        slot = worker(
            0, incarnation=incarnation, history=[*lives, {"incarnation": incarnation, "createdAt": NOW}]
        )
        spec = slot.spec.model_copy(update={"excluded_nodes": excluded})
        built = build_job_pod(job(), slot.model_copy(update={"spec": spec}))
        terms = built["spec"].get("affinity", {}).get("nodeAffinity", {})
        found = terms.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        fields = [wish["preference"]["matchFields"][0] for wish in found]
        return [(field["operator"], field["values"][0]) for field in fields]

    assert wishes([], incarnation=1) == []
    assert wishes([]) == [("In", "node-1")]
    assert wishes([], incarnation=3) == [("In", "node-2")]
    assert wishes(["node-1"]) == [("NotIn", "node-1")]


def test_outdated_servers_and_workers_get_their_new_resources_one_of_a_type_at_a_time() -> None:
    of = evolved(roles_job(status={"phase": "Running"}), all_of())
    more = {"resources": {type_: {"limits": {"memory": "2Gi"}} for type_ in ("ps", "worker")}}
    of = of.model_copy(update={"status": type(of.status).model_validate(of.status.to_wire() | more)})
    idle = {key: {"agent": report(key[1]).to_wire()} for key in all_of()}
    members = {key: member(*key, **idle[key]) for key in all_of()}
    pods = {w.metadata.uid: None if w.spec.type == "chief" else "old" for w in members.values()}
    plan = PLANS.plan(judging.seen_of(of, members.values(), pods=pods), NOW)
    relaunched = [act.name for act in plan.acts if act.body and "incarnation" in act.body.get("spec", {})]
    assert sorted(relaunched) == ["digits-ps-0", "digits-worker-0"]
