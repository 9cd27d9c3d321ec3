"""Converts a batch/v1 Job, and of a JobSet (jobset.x-k8s.io) the Job that trains."""

from __future__ import annotations

from dlr.convert.building import WorkersDraft, batch_run_policy, elastic_job, metadata_of, training_container
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark

OTHER_WORKERS = "workers of an ElasticJob differ by their ranks, which dlr gives"
RULES = "failurePolicy.rules of an ElasticJob match exit codes, conditions and texts"
OF_JOBS = {
    "podFailurePolicy": RULES,
    "backoffLimitPerIndex": "restartCount is of the job and of each worker",
    "maxFailedIndexes": "training needs all of its workers, or minReplicas of them",
    "successPolicy": "an ElasticJob succeeds when all of its workers do",
    "podReplacementPolicy": "a worker's next Pod can start while the last is still leaving",
}
TRAINERS = ("node", "trainer", "worker", "workers", "pytorch")
"""Usual names of replicated Jobs that train, the likeliest first."""
ANOTHER = "the workers of an ElasticJob are all alike; make a Job of it, or an init container"
OF_SETS = {
    "successPolicy": "an ElasticJob succeeds when all of its workers do",
    "startupPolicy": "all workers start at once",
    "coordinator": "rank 0 is the worker of the lowest index",
    "volumeClaimPolicies": "make a PersistentVolumeClaim, and name it in the Pod template",
}


def convert_job(manifest: Reader) -> JSON:
    """Convert a Job whose Pods train together."""
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    workers = workers_of_job(spec, 1)
    at = f"{spec.path}.template"
    container = training_container(workers.template, ("pytorch", "trainer", "main"), at)
    job = elastic_job(metadata, workers, manifest, at, container)
    manifest.finish()
    return job


def workers_of_job(spec: Reader, jobs: int) -> WorkersDraft:
    """Return the workers for so many Jobs with this spec."""
    parallelism = spec.number("parallelism", 1)
    if spec.number("completions", parallelism) != parallelism:
        why = f"all workers train at once, so there are {parallelism}, as of parallelism"
        spec.remarks.append(Remark(f"{spec.path}.completions", why))
    workers = WorkersDraft(spec.take("template", {}), replicas=parallelism * jobs)
    workers.limit_restarts(spec, "backoffLimit")
    batch_run_policy(spec, workers.fields)
    for key in ("completionMode", "manualSelector", "selector"):
        spec.replace(key, OTHER_WORKERS)
    spec.finish(OF_JOBS)
    return workers


def convert_jobset(manifest: Reader) -> JSON:
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    jobs = spec.each("replicatedJobs")
    if not jobs:
        raise NotConvertible("spec.replicatedJobs is empty.")
    trainer = jobs[trainer_among([job.body.get("name", "") for job in jobs])]
    for job in jobs:
        if job is not trainer:
            why = f"{job.body.get('name')}: {ANOTHER}"
            spec.remarks.append(Remark(job.path, why))
    trainer.take("name")
    trainer.replace("groupName", "it is for the success policy")
    count = trainer.number("replicas", 1)
    template = trainer.within("template")
    template.lose("metadata", "there is no Job any more; what is for Pods goes to the Pod template")
    job_spec = template.within("spec")
    workers = workers_of_job(job_spec, count)
    template.finish()
    trainer.finish({"dependsOn": "all workers start at once"})
    policy = spec.within("failurePolicy")
    workers.limit_restarts(policy, "maxRestarts")
    policy.finish({"rules": RULES})
    spec.replace("network", "workers find each other without DNS")
    batch_run_policy(spec, workers.fields)
    spec.finish(OF_SETS)
    at = f"{job_spec.path}.template"
    container = training_container(workers.template, ("pytorch", "trainer"), at)
    made = elastic_job(metadata, workers, manifest, at, container)
    manifest.finish()
    return made


def trainer_among(names: list[str]) -> int:
    """Return the index of the replicated Job that trains, by its name; the last if no name is usual."""
    return next((names.index(name) for name in TRAINERS if name in names), len(names) - 1)
