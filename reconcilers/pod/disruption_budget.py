"""The PodDisruptionBudget of a job: evictions leave it the workers that it needs to go on training.

An integer `minAvailable` is the only form that counts Pods of a controller that Kubernetes does not know:
https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
"""

from __future__ import annotations

from typing import Any

from controller.resources import PODDISRUPTIONBUDGETS
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.pod.builder import owner_reference
from reconcilers.world.minimum import minimum_workers

Object = dict[str, Any]


def budget_of(job: ElasticJob) -> Object | None:
    """None if no worker has to be there."""
    minimum = minimum_workers(job)
    if not minimum:
        return None
    return {
        "apiVersion": PODDISRUPTIONBUDGETS.api_version,
        "kind": PODDISRUPTIONBUDGETS.kind,
        "metadata": metadata_of(job),
        "spec": {
            "minAvailable": minimum,
            "selector": {"matchLabels": {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a Pod that is broken anyway holds no drain up
        },
    }


def metadata_of(job: ElasticJob) -> Object:
    """Of what stands beside a job's Pods: named as the job, and the job's own."""
    return {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "labels": {
            names.LABEL_APP: names.APP,
            names.LABEL_JOB: job.metadata.name,
            names.LABEL_MANAGED_BY: names.MANAGER,
        },
        "ownerReferences": [owner_reference("ElasticJob", job.metadata.name, job.metadata.uid)],
    }
