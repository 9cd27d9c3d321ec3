"""Converts DLRover's ElasticJob: the kind stays, and fields without a meaning in dlr go."""

from __future__ import annotations

from crds.names import MASTER_TYPES, WORKER
from dlr.convert.building import WorkersDraft, elastic_job, metadata_of, training_container
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark

OF_SPEC = {
    "brainService": "there is no Brain",
    "enableDynamicSharding": "dlr.shards needs no switch",
    "enableElasticScheduling": "minReplicas and maxReplicas say it",
}
KEPT = (
    *("distributionStrategy", "suspend", "resourceLimits", "envs", "managedBy", "elasticPolicy", "nodeCheck"),
    *("failurePolicy", "runPolicy", "schedulingPolicy", "agent", "optimizeMode"),
)
OF_REPLICAS = {
    "priority": "set the Pod template's priorityClassName",
    "restartTimeout": "nothing waits so long",
}


def convert_elasticjob(manifest: Reader) -> JSON:
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    replicas = spec.within("replicaSpecs")
    for name in MASTER_TYPES:
        replicas.replace(name, "there is no master Pod")
    others = {name: replicas.take(name) for name in ("ps", "chief", "evaluator") if name in replicas.body}
    if WORKER not in replicas.body:
        if not others:
            raise NotConvertible("spec.replicaSpecs has no worker.")
        raise NotConvertible(
            "spec.replicaSpecs has no worker; apply it as it is, dlr takes DLRover's ElasticJobs."
        )
    worker = replicas.within(WORKER)
    replicas.finish()
    fields = {key: value for key in KEPT if (value := spec.take(key)) is not None}
    spec.finish(OF_SPEC)
    workers = WorkersDraft(
        worker.take("template", {}),
        worker.number("replicas", 1),
        worker.number("minReplicas", None),
        worker.number("maxReplicas", None),
    )
    workers.limit_restarts(worker, "restartCount")
    kept: JSON = {
        key: worker.take(key) for key in ("standby", "memoryCheckpoint", "autoScale") if key in worker.body
    }
    if policy := worker.take("restartPolicy"):
        why = f"{policy}: the Pod template's own counts"
        worker.remarks.append(Remark(f"{worker.path}.restartPolicy", why, is_loss=False))
    worker.finish(OF_REPLICAS)
    pod = workers.template["spec"] = workers.template.get("spec") or {}
    if pod.get("restartPolicy") == "Always":
        why = "Always would start a finished training again, so it is Never"
        worker.remarks.append(Remark(f"{worker.path}.template.spec.restartPolicy", why, is_loss=False))
        pod["restartPolicy"] = "Never"
    at = f"{worker.path}.template"
    container = training_container(workers.template, ("main",), at)
    # Several roles are distinguished by their commands, which must stay then.
    job = elastic_job(metadata, workers, manifest, at, None if others else container)
    job["spec"]["replicaSpecs"][WORKER].update(kept)
    job["spec"]["replicaSpecs"].update(others)
    for key, value in fields.items():
        there = job["spec"].get(key)
        job["spec"][key] = {**there, **value} if isinstance(there, dict) else value
    manifest.finish()
    return job
