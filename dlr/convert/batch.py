"""A batch/v1 Job, by itself or in a JobSet."""

from __future__ import annotations

from dlr.convert.building import Workers, batch_run_policy, elastic_job, metadata_of, training_container
from dlr.convert.reading import JSON, Reader, Remark

OTHER_WORKERS = "workers of an ElasticJob are told apart by their ranks, which dlr gives"
POLICY = {"FailJob": "FailJob", "Ignore": "Ignore", "Count": "Restart"}
"""Actions of a Job's podFailurePolicy, and of ours."""
OF_JOBS = {
    "backoffLimitPerIndex": "restartCount is of the job and of each worker",
    "maxFailedIndexes": "training needs all of its workers, or minReplicas of them",
    "successPolicy": "an ElasticJob succeeds when all of its workers do",
    "podReplacementPolicy": "a worker's next Pod can start while the last is still leaving",
}


def convert_job(manifest: Reader) -> JSON:
    """A Job whose Pods train together."""
    metadata = metadata_of(manifest)
    spec = manifest.within("spec")
    workers = workers_of_job(spec, 1)
    at = f"{spec.path}.template"
    container = training_container(workers.template, ("pytorch", "trainer", "main"), at)
    job = elastic_job(metadata, workers, manifest, at, container)
    manifest.finish()
    return job


def workers_of_job(spec: Reader, jobs: int) -> Workers:
    """The workers of so many Jobs with this spec."""
    parallelism = spec.number("parallelism", 1)
    if spec.number("completions", parallelism) != parallelism:
        why = f"all workers train at once, so there are {parallelism}, as of parallelism"
        spec.remarks.append(Remark(f"{spec.path}.completions", why))
    workers = Workers(spec.take("template", {}), replicas=parallelism * jobs)
    workers.restarts = spec.number("backoffLimit", None)
    batch_run_policy(spec, workers.fields)
    if rules := _failure_rules(spec.within("podFailurePolicy")):
        workers.fields["failurePolicy.rules"] = rules
    for key in ("completionMode", "manualSelector", "selector"):
        spec.replace(key, OTHER_WORKERS)
    spec.finish(OF_JOBS)
    return workers


def _failure_rules(policy: Reader) -> list[JSON]:
    rules = []
    for rule in policy.each("rules"):
        action = rule.take("action")
        if action not in POLICY:
            why = "there are the actions Restart, Replace, FailJob and Ignore"
            rule.remarks.append(Remark(f"{rule.path}.action", f"{action}: {why}"))
            rule.body.clear()
            continue
        made: JSON = {"action": POLICY[action]}
        if codes := rule.take("onExitCodes"):
            made["onExitCodes"] = codes
        if conditions := rule.take("onPodConditions"):
            made["onPodConditions"] = conditions
        rule.finish()
        rules.append(made)
    policy.finish()
    return rules
