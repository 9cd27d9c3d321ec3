"""Converts a PyTorchJob (kubeflow.org/v1), whose master and workers become workers."""

from __future__ import annotations

from dlr.convert.building import WorkersDraft, batch_run_policy, elastic_job, metadata_of, training_container
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark

CONTAINER = ("pytorch",)
OF_WORLD = ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone")
GANG = "set the ElasticJob's spec.schedulingPolicy.gang, which starts the minimum together"
QUEUE = "label the ElasticJob for Kueue, or annotate the Pod template for Volcano (docs/capacity.md)"


def convert_pytorchjob(manifest: Reader) -> JSON:
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    replicas = spec.within("pytorchReplicaSpecs")
    types: dict[str, Reader] = {
        name: replicas.within(name) for name in ("Master", "Worker") if name in replicas.body
    }
    replicas.finish()
    if not types:
        raise NotConvertible("spec.pytorchReplicaSpecs has neither Master nor Worker.")
    counts = {name: each.number("replicas", 1) for name, each in types.items()}
    templates = {name: each.take("template", {}) for name, each in types.items()}
    chosen = "Worker" if "Worker" in types else "Master"
    if len(types) > 1 and templates["Master"] != templates["Worker"]:
        why = "all workers have the template of Worker, and this one differs"
        spec.remarks.append(Remark(f"{types['Master'].path}.template", why))
    workers = WorkersDraft(templates[chosen], replicas=sum(counts.values()))
    for each in types.values():
        _restart_policy(each, workers)
        each.finish()
    if (processes := spec.take("nprocPerNode")) is not None:
        workers.processes = str(processes)
    _elastic_policy(spec.within("elasticPolicy"), workers, counts.get("Master", 0))
    _run_policy(spec.within("runPolicy"), workers)
    spec.finish()
    at = f"{types[chosen].path}.template"
    container = training_container(workers.template, CONTAINER, at)
    job = elastic_job(metadata, workers, manifest, at, container)
    manifest.finish()
    return job


def _restart_policy(replica: Reader, workers: WorkersDraft) -> None:
    policy = replica.take("restartPolicy", "OnFailure")
    if policy == "Never":
        workers.restarts, workers.restarts_at = 0, f"{replica.path}.restartPolicy"
    elif policy != "OnFailure":
        why = f"{policy}: failures are classified by their cause, and have restartCount tries"
        replica.remarks.append(Remark(f"{replica.path}.restartPolicy", why, is_loss=False))
    (workers.template.get("spec") or {}).pop("restartPolicy", None)  # the operator overwrites it


def _elastic_policy(policy: Reader, workers: WorkersDraft, masters: int) -> None:
    if (least := policy.number("minReplicas", None)) is not None:
        workers.least = least + masters
    if (most := policy.number("maxReplicas", None)) is not None:
        workers.most = max(most + masters, workers.replicas)
    workers.limit_restarts(policy, "maxRestarts")
    for key in ("nProcPerNode", "nprocPerNode"):
        if (processes := policy.take(key)) is not None:
            workers.processes = str(processes)
    for key in OF_WORLD:
        policy.replace(key, "dlr decides who meets whom")
    policy.finish({"metrics": "make a HorizontalPodAutoscaler of the ElasticJob, which has /scale"})


def _run_policy(policy: Reader, workers: WorkersDraft) -> None:
    batch_run_policy(policy, workers.fields)
    if clean := policy.take("cleanPodPolicy"):
        workers.fields["runPolicy.cleanPodPolicy"] = clean
    workers.limit_restarts(policy, "backoffLimit")
    scheduling = policy.within("schedulingPolicy")
    if name := scheduling.take("priorityClass"):
        workers.template.setdefault("spec", {})["priorityClassName"] = name
    gang = dict.fromkeys(("minAvailable", "minResources", "scheduleTimeoutSeconds"), GANG)
    scheduling.finish(gang | {"queue": QUEUE})
    policy.finish()
