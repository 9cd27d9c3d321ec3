"""ElasticJob: a training job, as the user submits it, with its status."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field

from crds.grouping import MAX_GROUPS, group_name
from crds.job_spec import TRAINING_TYPES, ElasticJobSpec
from crds.job_status import ElasticJobStatus
from crds.model import Model, ObjectMeta, cel, rules
from crds.names import LONGEST_NAME, WORKER

LONGEST_GROUPED_NAME = LONGEST_NAME - len(WORKER) - len(group_name("", MAX_GROUPS - 1))
"""Maximum characters of the name of a job with replica groups."""


class JobMeta(ObjectMeta):
    """Metadata of a job, with its owner; a replica group is owned by the job that it belongs to."""

    owner_references: list[dict[str, Any]] = Field(default_factory=list)


class ElasticJob(Model):
    """An elastic, self-healing training job."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                " && ".join(
                    f"(!has(self.spec.replicaSpecs.{type_}) || "
                    f"size(self.metadata.name) <= {LONGEST_NAME - len(type_)})"
                    for type_ in TRAINING_TYPES
                ),
                f"metadata.name is too long: with a replica type's name it may have {LONGEST_NAME} "
                "characters, so that the Pods' names stay within 63",
            ),
            cel(
                "!has(self.spec.elasticPolicy) || !has(self.spec.elasticPolicy.replicaGroups) || "
                f"size(self.metadata.name) <= {LONGEST_GROUPED_NAME}",
                "metadata.name is too long: beside elasticPolicy.replicaGroups it may have "
                f"{LONGEST_GROUPED_NAME} characters, so that the names of its groups' Pods stay within 63",
            ),
            cel(
                "!has(self.status) || !has(self.status.phase) || "
                "!(self.status.phase in ['Succeeded', 'Failed']) || "
                "!has(self.spec.replicaSpecs.worker) || !has(oldSelf.spec.replicaSpecs.worker) || "
                "self.spec.replicaSpecs.worker.replicas == oldSelf.spec.replicaSpecs.worker.replicas",
                "the job has ended, and has no workers to scale: submit it again under another name, or "
                "delete it first",
            ),
            cel(
                "!self.metadata.name.contains('.')",
                "metadata.name must not contain dots: Pods are named by it",
            ),
            cel(
                "!has(self.spec.replicaSpecs.ps) || self.spec.replicaSpecs.ps.replicas == 0 || "
                "self.metadata.name.matches('^[a-z]')",
                "metadata.name must begin with a letter beside parameter servers: a Service has it too",
            ),
        )
    )

    metadata: JobMeta
    spec: ElasticJobSpec
    status: ElasticJobStatus = Field(default_factory=ElasticJobStatus)

    @property
    def stops(self) -> bool:
        """Whether the job should have no Pods: it is suspended, a queue grants it none, or it is being
        deleted and a finalizer keeps it."""
        return self.spec.suspend or self.is_queued or self.metadata.deletion_timestamp is not None

    @property
    def is_queued(self) -> bool:
        """Whether a queue grants the job no Pods now."""
        return self.status.admission is not None and not self.status.admission.workers

    @property
    def group_count(self) -> int:
        """Number of replica groups, as `crds.grouping.group_count` reads it from a plain object."""
        groups = self.spec.elastic_policy.replica_groups
        return self.spec.replica_specs[WORKER].replicas // groups.workers if groups else 0

    def having(self, **update: Any) -> Self:
        """Return the job with these fields of its status replaced."""
        return self.model_copy(update={"status": self.status.model_copy(update=update)})
