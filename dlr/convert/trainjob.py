"""Converts a TrainJob (trainer.kubeflow.org) with the runtime that it names."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from dlr.convert.batch import OF_SETS, trainer_among, workers_of_job
from dlr.convert.building import WorkersDraft, batch_run_policy, elastic_job, metadata_of, training_container
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark, refuse_misshapen

RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
CONTAINER = ("node", "trainer")
_NODE: JSON = {"name": "node", "image": "pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime"}
_NODES: JSON = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [_NODE]}}}}}
TORCH_DISTRIBUTED: JSON = {
    "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
    "template": {"spec": {"replicatedJobs": [_NODES]}},
}
"""Trainer's built-in runtime torch-distributed (its manifests/base/runtimes, at 2.1)."""
BUILT_IN = {"torch-distributed": TORCH_DISTRIBUTED}
INITIALIZER = "download in an init container of the Pod template, or in the script"


def convert_trainjob(manifest: Reader, documents: Sequence[JSON]) -> JSON:
    """Convert a TrainJob.

    Args:
        documents: all objects of the files, including the runtime, unless it is one of Trainer's own.
    """
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    runtime = _runtime(spec.within("runtimeRef"), documents)
    workers, at = _of_runtime(runtime)
    manifest.remarks += runtime.remarks
    container = training_container(workers.template, CONTAINER, at)
    trainer = spec.within("trainer")
    _of_trainer(trainer, workers, container)
    spec.lose("initializer", INITIALIZER)
    for key in ("podTemplateOverrides", "podSpecOverrides"):
        for override in (*spec.each(key), *trainer.each(key)):
            targets = _names(override.each("targetJobs"))
            if any(target in CONTAINER for target in targets):
                _override(override, workers.template)
            else:
                spec.remarks.append(Remark(override.path, f"it is for {', '.join(targets)}"))
    trainer.finish()
    for patch in spec.each("runtimePatches"):
        _patch(patch, workers.template, metadata)
    for key in ("labels", "annotations"):
        if extra := spec.take(key):
            metadata[key] = {**metadata.get(key, {}), **extra}
    batch_run_policy(spec, workers.fields)
    spec.finish()
    job = elastic_job(metadata, workers, manifest, at, container)
    manifest.finish()
    return job


def _runtime(reference: Reader, documents: Sequence[JSON]) -> Reader:
    name, kind = str(reference.take("name", "")), str(reference.take("kind", "ClusterTrainingRuntime"))
    if not name:
        raise NotConvertible(f"{reference.path}.name is missing.")
    reference.take("apiGroup")
    reference.finish()
    for document in documents:
        if (document.get("kind"), (document.get("metadata") or {}).get("name")) == (kind, name):
            found = Reader(copy.deepcopy(document.get("spec") or {}), f"{kind} {name}: spec")
            refuse_misshapen({"spec": found.body}, f"{kind} {name}")
            return found
    if name in BUILT_IN:
        return Reader(copy.deepcopy(BUILT_IN[name]), f"{kind} {name}: spec")
    raise NotConvertible(
        f"its {kind} {name!r} is not among these files: add what "
        f"`kubectl get {kind.lower()} {name} -o yaml` prints, with another -f."
    )


def _of_runtime(spec: Reader) -> tuple[WorkersDraft, str]:
    policy = spec.within("mlPolicy")
    nodes = policy.number("numNodes", 1)
    torch = policy.within("torch")
    template = spec.within("template")
    template.lose("metadata", "it is for a JobSet")
    jobset = template.within("spec")
    jobs = jobset.each("replicatedJobs")
    if not jobs:
        raise NotConvertible(f"{jobset.path}.replicatedJobs is empty.")
    job = jobs[trainer_among([each.body.get("name", "") for each in jobs])]
    for other in jobs:
        if other is not job:
            spec.remarks.append(Remark(other.path, f"{other.body.get('name')}: {INITIALIZER}"))
    job_template = job.within("template")
    job_template.replace("metadata", "it is for a Job, which there is none of")
    job_spec = job_template.within("spec")
    workers = workers_of_job(job_spec, 1)
    workers.replicas = nodes
    workers.processes = str(torch.take("numProcPerNode", "auto"))
    elastic = torch.within("elasticPolicy")
    workers.least, workers.most = elastic.number("minNodes", None), elastic.number("maxNodes", None)
    workers.limit_restarts(elastic, "maxRestarts")
    for part, reasons in (
        (elastic, {"metrics": "make a HorizontalPodAutoscaler of the ElasticJob, which has /scale"}),
        (torch, {}),
        (policy, {"mpi": "dlr starts torch's processes, and no mpirun"}),
        (job_template, {}),
    ):
        part.finish(reasons)
    for key in ("name", "replicas"):
        job.take(key)
    job.finish()
    jobset.finish(OF_SETS)
    template.finish()
    spec.finish({"podGroupPolicy": "set the ElasticJob's spec.schedulingPolicy.gang"})
    return workers, f"{job_spec.path}.template"


def _of_trainer(trainer: Reader, workers: WorkersDraft, container: JSON) -> None:
    workers.replicas = trainer.number("numNodes", workers.replicas)
    if (processes := trainer.take("numProcPerNode")) is not None:
        workers.processes = str(processes)
    if image := trainer.take("image"):
        container["image"] = image
    if command := trainer.take("command"):
        container["command"] = command
        container.pop("args", None)
    if arguments := trainer.take("args"):
        container["args"] = arguments
    if resources := trainer.take("resourcesPerNode"):
        container["resources"] = resources
    container["env"] = _by_name(container.get("env") or [], trainer.take("env", []))
    if not container["env"]:
        del container["env"]
    if workers.least is not None:
        workers.least = min(workers.least, workers.replicas)
    if workers.most is not None:
        workers.most = max(workers.most, workers.replicas)


def _names(jobs: Sequence[Reader]) -> list[str]:
    names = [str(job.take("name")) for job in jobs]
    for job in jobs:
        job.finish()
    return names


def _override(override: Reader, template: JSON) -> None:
    """Merge the metadata and the spec of an override into the Pod template."""
    metadata = override.within("metadata")
    for key in ("labels", "annotations"):
        if found := metadata.take(key):
            template.setdefault("metadata", {}).setdefault(key, {}).update(found)
    metadata.finish()
    merge_pod_spec(template.setdefault("spec", {}), override.take("spec", {}))
    override.finish()


def _patch(patch: Reader, template: JSON, metadata: JSON) -> None:
    patch.take("manager")
    patch.take("time")
    runtime = patch.within("trainingRuntimeSpec")
    jobset = runtime.within("template")
    of_jobset = jobset.within("metadata")
    for key in ("labels", "annotations"):
        if found := of_jobset.take(key):
            metadata[key] = {**metadata.get(key, {}), **found}
    of_jobset.finish()
    jobset_spec = jobset.within("spec")
    jobs = jobset_spec.each("replicatedJobs")
    for number, job in enumerate(jobs):
        if number != trainer_among([each.body.get("name", "") for each in jobs]):
            job.remarks.append(Remark(job.path, INITIALIZER))
            continue
        job.take("name")
        job_template = job.within("template")
        job_template.lose("metadata", "it is for a Job, which there is none of")
        pods = job_template.within("spec")
        _override(pods.within("template"), template)
        for part in (pods, job_template, job):
            part.finish()
    for part in (jobset_spec, jobset, runtime, patch):
        part.finish()


def merge_pod_spec(spec: JSON, patch: JSON) -> None:
    """Merge a patch: objects by key, lists of named objects by name; other lists are appended."""
    for key, value in patch.items():
        there = spec.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            merge_pod_spec(there, value)
        elif isinstance(value, list) and isinstance(there, list):
            spec[key] = _by_name(there, value)
        else:
            spec[key] = value


def _by_name(there: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    merged = [copy.deepcopy(each) for each in there]
    for each in added:
        name = each.get("name") if isinstance(each, dict) else None
        same = next(
            (old for old in merged if name and isinstance(old, dict) and old.get("name") == name), None
        )
        if same is None:
            merged.append(each)
        elif "value" in each or "valueFrom" in each:
            merged[merged.index(same)] = each
        else:
            merge_pod_spec(same, each)
    return merged
