"""The cluster of a job with parameter servers, as controller and agent read it; and what is refused at apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crds import names
from crds.cluster import MAX_CONFIG_BYTES, Cluster
from localcluster.schema import CompiledSchema
from reconcilers.job.published import world_spec

Object = dict[str, Any]
RUNS = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["serve"]}]}}


def manifest(**types: Object) -> Object:
    """A job with a chief, two parameter servers and two workers, but for what is said otherwise."""
    specs = {"chief": {"replicas": 1}, "ps": {"replicas": 2}, "worker": {"replicas": 2}} | types
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "wide", "namespace": "ads"},
        "spec": {"replicaSpecs": {t: {"template": RUNS} | spec for t, spec in specs.items() if spec}},
    }


def parsed(job: dict[str, Any]) -> Cluster | None:
    """As an agent reads it from the ElasticWorld of the job."""
    metadata = job["metadata"] | {"labels": {names.LABEL_JOB: job["metadata"]["name"]}}
    return Cluster.parse({"metadata": metadata, "spec": world_spec(job)})


def cluster(**status: Any) -> Cluster:
    tasks = {"chief": "0", "ps": "2,1", "worker": "0-1"}
    found = parsed(
        manifest() | {"status": {"cluster": {"version": 3, "tasks": tasks, "incarnations": [1, 4]} | status}}
    )
    assert found is not None
    return found


def test_a_command_is_told_the_names_of_all_and_which_task_it_is() -> None:
    told = cluster().variables("ps", 2)
    assert told["DLR_CLUSTER_VERSION"] == "3"
    assert json.loads(told["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["wide-chief-0.wide.ads.svc:2222"],
            "ps": ["wide-ps-2.wide.ads.svc:2231", "wide-ps-1.wide.ads.svc:2227"],
            "worker": ["wide-worker-0.wide.ads.svc:2224", "wide-worker-1.wide.ads.svc:2228"],
        },
        "task": {"type": "ps", "index": 0},
    }


def test_an_evaluator_is_beside_the_cluster_and_a_slot_without_a_task_has_no_place() -> None:
    beside = json.loads(cluster().variables("evaluator", 0)["TF_CONFIG"])
    assert beside["task"] == {"type": "evaluator", "index": 0} and "evaluator" not in beside["cluster"]
    assert (cluster().place("ps", 1), cluster().place("ps", 0)) == (1, None)


def test_no_two_tasks_share_a_port_and_the_template_says_where_they_begin() -> None:
    ports = [cluster().port(type_, i) for type_ in ("chief", "ps", "worker", "evaluator") for i in range(50)]
    assert len(set(ports)) == len(ports)
    container = RUNS["spec"]["containers"][0] | {"ports": [{"name": "cluster", "containerPort": 9000}]}
    job = manifest(ps={"replicas": 2, "template": {"spec": {"containers": [container]}}})
    found = parsed(job | {"status": {"cluster": {"version": 1, "tasks": {"ps": "0-1"}}}})
    assert found is not None and found.address("ps", 1) == "wide-ps-1.wide.ads.svc:9005"


def test_a_job_without_one_or_with_one_of_a_later_dlr_has_none() -> None:
    assert parsed(manifest()) is None
    assert parsed(manifest() | {"status": {"cluster": {"version": 1, "tasks": {"ps": "z…"}}}}) is None


def test_the_addresses_of_a_large_job_fit_into_a_variable_unless_names_are_long() -> None:
    """MAX_ARG_STRLEN of execve(2)."""
    usual = Cluster("wide-and-deep", "team-ads", 1, {"ps": range(256), "worker": range(1_000)}, {})
    assert usual.config_bytes() <= MAX_CONFIG_BYTES < 128 * 1024
    long = Cluster("a" * 44, "n" * 63, 1, {"ps": range(256), "worker": range(1_000)}, {})
    assert long.config_bytes() > 128 * 1024


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 200), st.booleans())
def test_no_task_is_told_more_than_the_longest_and_moves_do_not_fill_the_variable(
    job: int, namespace: int, workers: int, chief: bool
) -> None:
    tasks = {"chief": [0] if chief else [], "ps": range(3), "worker": range(workers)}
    large = Cluster("j" * job, "n" * namespace, 1, tasks, {})
    slots = [(type_, index) for type_, found in tasks.items() for index in found]
    told = [len(large.variables(*slot)["TF_CONFIG"]) for slot in [*slots, ("evaluator", 7)]]
    assert max(told) <= large.config_bytes()
    moved = Cluster("j" * job, "n" * namespace, 1, tasks | {"worker": range(9_000, 9_000 + workers)}, {})
    assert moved.config_bytes() - large.config_bytes() <= 8 * 1024


@pytest.mark.parametrize("type_", ["chief", "ps", "worker", "evaluator"])
@given(replicas=st.integers(1, 256))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_port_from_which_the_last_slot_would_get_none_is_refused(
    schema: CompiledSchema, type_: str, replicas: int
) -> None:
    replicas = 1 if type_ == "chief" else replicas
    highest = 65_400 - 8 * replicas

    def job(port: int | None) -> Object:
        ports = None if port is None else [{"name": "cluster", "containerPort": port}]
        container = RUNS["spec"]["containers"][0] | {"ports": ports}
        spec = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
        return manifest(**{type_: spec})

    assert faults(schema, job(highest)) == []
    assert faults(schema, job(None)) == [], "null is nothing, as in a Pod"
    (refused,) = faults(schema, job(highest + 1))
    assert refused.startswith(
        f"spec: Invalid value: replicaSpecs.{type_}.template.spec.containers[0].ports: "
    )
    found = Cluster("wide", "ads", 1, {}, {type_: highest})
    assert found.port(type_, 2 * replicas) <= 65_535, "also of a slot that has taken another's place"


BAD: dict[str, tuple[Callable[[Object], object], str]] = {
    "a chief beside no ps": (
        lambda job: job["spec"]["replicaSpecs"].pop("ps"),
        "spec: Invalid value: replicaSpecs.chief coordinates parameter servers: add replicaSpecs.ps",
    ),
    "servers that nobody asks": (
        lambda job: (
            [job["spec"]["replicaSpecs"].pop(type_) for type_ in ("chief", "worker")]
            + [job["spec"].update(distributionStrategy="ParameterServerStrategy")]
        ),
        "spec: Invalid value: replicaSpecs.ps alone trains nothing: add replicaSpecs.chief or "
        "replicaSpecs.worker, which use it",
    ),
    "two chiefs": (
        lambda job: job["spec"]["replicaSpecs"]["chief"].update(replicas=2),
        "spec: Invalid value: replicaSpecs.chief.replicas must be 1: there is one chief",
    ),
    "a chief beside no parameter server": (
        lambda job: job["spec"]["replicaSpecs"]["ps"].update(replicas=0),
        "spec: Invalid value: replicaSpecs.chief coordinates parameter servers: add replicaSpecs.ps",
    ),
    "too many parameter servers": (
        lambda job: job["spec"]["replicaSpecs"]["ps"].update(replicas=257),
        "spec: Invalid value: replicaSpecs.ps.replicas must be at most 256",
    ),
    "a ps without a command": (
        lambda job: job["spec"]["replicaSpecs"]["ps"].update(
            template={"spec": {"containers": [{"name": "main", "image": "x"}]}}
        ),
        "spec: Invalid value: replicaSpecs.ps.template.spec.containers[0].command must say what a parameter "
        "server runs",
    ),
    "a ps whose command is left empty": (
        lambda job: job["spec"]["replicaSpecs"]["ps"].update(
            template={"spec": {"containers": [{"name": "main", "image": "x", "command": None}]}}
        ),
        "spec: Invalid value: replicaSpecs.ps.template.spec.containers[0].command must say what a parameter "
        "server runs",
    ),
    "a ps without a container": (
        lambda job: job["spec"]["replicaSpecs"]["ps"].update(template={"spec": {"containers": []}}),
        "spec.replicaSpecs.ps.template.spec.containers: Invalid value: []: "
        "spec.replicaSpecs.ps.template.spec.containers in body should have at least 1 items",
    ),
    "standby beside ps": (
        lambda job: job["spec"]["replicaSpecs"]["worker"].update(standby=1),
        "spec: Invalid value: replicaSpecs.worker beside ps may have up to 1000 replicas, and neither standby "
        "nor memoryCheckpoint: these need a world, and the job has none",
    ),
    "spare processes that have nothing to go on from": (
        lambda job: job["spec"].update(elasticPolicy={"spareProcesses": 1}),
        "spec: Invalid value: elasticPolicy.spareProcesses needs replicaSpecs.worker.memoryCheckpoint: "
        "a spare goes on from a checkpoint in memory",
    ),
    "node checks beside ps": (
        lambda job: job["spec"].update(nodeCheck={"enabled": True}),
        "spec: Invalid value: nodeCheck.enabled must be false beside ps: nodes are checked before a world is "
        "formed, and the job has none",
    ),
    "growth into free room beside ps": (
        lambda job: (
            job["spec"].update(elasticPolicy={"opportunistic": {"priorityClassName": "low"}}),
            job["spec"]["replicaSpecs"]["worker"].update(maxReplicas=4),
        ),
        "spec: Invalid value: elasticPolicy.opportunistic must not be set beside ps: it is a world that grows, "
        "and the job has none",
    ),
    "a label that its Pods would not get": (
        lambda job: job["spec"]["replicaSpecs"]["worker"].update(
            template=RUNS | {"metadata": {"labels": {names.LABEL_MANAGED_BY: "Helm"}}}
        ),
        "spec.replicaSpecs.worker.template.metadata.labels: Invalid value: app.kubernetes.io/managed-by must be "
        "dlr or absent: dlr finds its Pods by it",
    ),
    "a name that no Service may have": (
        lambda job: job["metadata"].update(name="9-lives"),
        "<nil>: Invalid value: metadata.name must begin with a letter beside parameter servers: a Service has "
        "it too",
    ),
}


def faults(schema: CompiledSchema, job: Object) -> list[str]:
    return [str(fault) for fault in schema.validate(schema.default(job))]


@pytest.mark.parametrize("auto", [True, False])
def test_a_job_as_dlrovers_criteo_example_is_taken_though_its_master_has_no_image(
    schema: CompiledSchema, auto: bool
) -> None:
    """Types without a count, which DLRover's master would choose; the limits stand for what it may choose from."""
    master = {"template": {"spec": {"containers": [{"name": "main", "imagePullPolicy": "Always"}]}}}
    types = {type_: {"autoScale": auto} for type_ in ("ps", "worker", "evaluator")}
    job = manifest(chief={}, **types)
    job["spec"] |= {"distributionStrategy": "ParameterServerStrategy"}
    job["spec"] |= {"resourceLimits": {"cpu": "15", "memory": "30000Mi"}} if auto else {}
    job["spec"]["replicaSpecs"]["dlrover-master"] = master
    assert faults(schema, job) == []
    assert schema.default(job)["spec"]["replicaSpecs"]["ps"]["replicas"] == 1
    job["spec"]["replicaSpecs"]["ps"]["template"] = master["template"]
    assert any("image" in fault for fault in faults(schema, job)), "of those that run it is required"


@pytest.mark.parametrize(
    "ports", [8080, [8080], [{"name": "cluster"}], [{"name": "cluster", "containerPort": "x"}]]
)
def test_ports_that_dlr_could_not_read_are_refused_with_their_path(
    schema: CompiledSchema, ports: object
) -> None:
    container = RUNS["spec"]["containers"][0] | {"ports": ports}
    job = manifest(ps={"replicas": 2, "template": {"spec": {"containers": [container]}}})
    first, *_ = faults(schema, job)
    assert first.startswith("spec.replicaSpecs.ps.template.spec.containers[0].ports")


def test_a_job_with_roles_is_taken_with_or_without_a_chief_and_workers(schema: CompiledSchema) -> None:
    assert faults(schema, manifest()) == []
    job = manifest(chief={}, evaluator={"replicas": 1})
    assert faults(schema, job) == []
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    assert faults(schema, manifest(chief={}, ps={"replicas": 0, "template": template})) == [], "as DLRover's"


def test_a_job_has_servers_from_its_beginning_to_its_end(schema: CompiledSchema) -> None:
    with_some, with_none = (schema.default(manifest(chief={}, ps={"replicas": n})) for n in (2, 0))
    sentence = "a job cannot add its first parameter server or remove its last; make another job"
    for new, old in ((with_some, with_none), (with_none, with_some)):
        assert [str(fault) for fault in schema.validate(new, old)] == [f"spec: Invalid value: {sentence}"]


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_in_one_sentence(schema: CompiledSchema, case: str) -> None:
    spoil, sentence = BAD[case]
    job = json.loads(json.dumps(manifest()))
    spoil(job)
    assert faults(schema, job) == [sentence]
