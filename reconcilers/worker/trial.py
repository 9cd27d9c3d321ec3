"""Whether the API server would take a job's Pods: one of each type is tried by a dry run, before any is made.

It is the type's first Pod, without its PodGroup, for which webhooks may turn Pods away. Answers that say
nothing of the template are no refusal: a quota that is used up, a webhook without dry runs, a right that dlr
lacks.
https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from controller.cache import Cache
from controller.client import Client
from controller.errors import (
    AlreadyExists,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    Refused,
    Unavailable,
    is_denial,
)
from controller.resources import PODS, Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_spec import SchedulingPolicy
from crds.texts import shortened
from reconcilers.observed.builder import service_account
from reconcilers.observed.options import AgentSource
from reconcilers.observed.quantities import is_quantity
from reconcilers.observed.resources import KINDS, mapping, memory_checkpoint_fault
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import opportunistic_policy, training_types
from reconcilers.observed.workers import new_worker
from reconcilers.roles.progress import sets_tf_config
from reconcilers.roles.tasks import config_fault
from reconcilers.runtime.acts import in_parallel
from reconcilers.worker.access import WorkerAccess
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.injection import inject_agent

MAX_FAULTS = 8
"""Fields that are named of those that the API server refuses."""
MAX_AMOUNT = 64
MAX_WHY = 320
"""Characters of the API server's reason: with what we say around it, it has to fit into a condition."""

_POD_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_METADATA_FIELDS = frozenset(
    (
        *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
        *("ownerReferences", "finalizers", "managedFields"),
    )
)
_UNKNOWN_FIELD = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
_CONTAINER_FIELD = re.compile(r"spec\.(initContainers|containers)\[(\d+)\](?:\.env\[(\d+)\])?")


class Answer(StrEnum):
    """What the trial came to; the worst first, for a job of several types."""

    INVALID = "PodInvalid"
    FORBIDDEN = "PodForbidden"
    NONE = "NoAnswer"
    UNSUPPORTED = "DryRunUnsupported"
    ACCEPTED = "Accepted"


@dataclass(frozen=True)
class Trial:
    answer: Answer
    message: str = ""


class PodTrial:
    def __init__(self, client: Client, cache: Cache, agent: AgentSource | None) -> None:
        self._client = client
        self._access = WorkerAccess(client, cache)
        self._agent = agent

    async def of(self, job: ElasticJob, raw: Object) -> Trial:
        """The worst answer of all replica types.

        Raises:
            NamespaceTerminating: nothing can be made there any more.
        """
        found: dict[str, Trial] = {}

        async def try_type(type_: str) -> None:
            found[type_] = await self._of_type(job, raw, type_)

        await in_parallel(try_type(type_) for type_ in training_types(job))
        ranks = {answer: rank for rank, answer in enumerate(Answer)}
        return min(found.values(), key=lambda trial: ranks[trial.answer], default=Trial(Answer.ACCEPTED))

    async def _of_type(self, job: ElasticJob, raw: Object, type_: str) -> Trial:
        if (fault := memory_checkpoint_fault(job, type_) or cluster_fault(job, type_)) is not None:
            return Trial(Answer.INVALID, fault)
        pod = self._pod(job, raw, type_)
        try:
            await self._try(pod, raw)
        except AlreadyExists:  # which is asked last
            return Trial(Answer.ACCEPTED)
        except NamespaceTerminating:
            raise
        except (Refused, Unavailable) as error:
            return trial_of(error, job, type_, pod)
        return await self._of_extra(job, type_, pod)

    async def _of_extra(self, job: ElasticJob, type_: str, pod: Object) -> Trial:
        """Tries the Pods by which the job grows, which differ by their priority."""
        policy = opportunistic_policy(job)
        if policy is None or type_ != names.WORKER:
            return Trial(Answer.ACCEPTED)
        spec = {key: value for key, value in pod["spec"].items() if key != "priority"}
        try:
            await self._client.try_create(
                PODS, pod | {"spec": spec | {"priorityClassName": policy.priority_class_name}}
            )
        except Forbidden as error:
            if "PriorityClass" in str(error):
                path = "spec.elasticPolicy.opportunistic.priorityClassName"
                message = f"{path}: there is no PriorityClass {policy.priority_class_name}; create it"
                return Trial(Answer.FORBIDDEN, message)
        except NamespaceTerminating:
            raise
        except (Refused, Unavailable):
            pass  # the same Pod has just been taken without
        return Trial(Answer.ACCEPTED)

    def _pod(self, job: ElasticJob, raw: Object, type_: str) -> Object:
        """Builds the Pod of the type's first slot."""
        alone = job.spec.model_copy(update={"scheduling_policy": SchedulingPolicy()})
        job = job.model_copy(update={"spec": alone})
        worker = new_worker(job, type_, 0)
        worker["metadata"]["uid"] = "trial"
        assignment = JobAssignment(ElasticWorker.model_validate(worker), raw, job)
        pod = assignment.build_pod()
        if self._agent is not None and assignment.wants_agent:
            inject_agent(pod, self._agent)
        return with_unknown_fields(pod, job.spec.replica_specs[type_].template)

    async def _try(self, pod: Object, owner: Object) -> None:
        """Try the Pod, after its account, which may have gone since the cache showed it."""
        account = service_account(pod["spec"])
        await self._access.ensure(owner, account)
        try:
            await self._client.try_create(PODS, pod)
        except Forbidden:
            await self._access.ensure(owner, account, missed=True)
            await self._client.try_create(PODS, pod)


def with_unknown_fields(pod: Object, template: Object) -> Object:
    """Add the template's fields that no Pod has, which are left out of Pods, so that a trial names them."""
    metadata = template.get("metadata") or {}
    unknown = {field: value for field, value in metadata.items() if field not in _METADATA_FIELDS}
    others = {field: value for field, value in template.items() if field not in _POD_FIELDS}
    return {**others, **pod, "metadata": {**unknown, **pod["metadata"]}}


def trial_of(error: Refused | Unavailable, job: ElasticJob, type_: str, pod: Object) -> Trial:
    """What an error says of the template. Pure."""
    why = shortened(" ".join(str(error).split()), MAX_WHY)
    if isinstance(error, Forbidden) and "exceeded quota" in why:
        return Trial(Answer.ACCEPTED)
    if isinstance(error, Refused) and is_denial(error):
        return Trial(Answer.FORBIDDEN, f"the API server refuses the Pods of type {type_}: {why}")
    if isinstance(error, Invalid) and "dry run" in why and error.status == 400:
        # https://github.com/kubernetes/apiserver/blob/master/pkg/admission/plugin/webhook/errors/statuserror.go
        return Trial(Answer.UNSUPPORTED, f"the API server cannot try the Pods of type {type_}: {why}")
    if isinstance(error, Invalid):
        fields = _bad_quantity(job, type_) or "; ".join(_faults(error, job, type_, pod)) or why
        message = f"the API server refuses the Pods of type {type_}: {shortened(fields, MAX_WHY)}"
        return Trial(Answer.INVALID, message)
    if isinstance(error, Forbidden) and "cannot create resource" not in why:
        return Trial(Answer.FORBIDDEN, f"the API server refuses the Pods of type {type_}: {why}")
    return Trial(Answer.NONE, f"the API server could not try the Pods of type {type_}: {why}")


def _faults(error: Invalid, job: ElasticJob, type_: str, pod: Object) -> list[str]:
    """Each field that is wrong, by its path in the job, and what is wrong with it."""
    causes = islice(error.details.get("causes") or (), MAX_FAULTS)
    wrong = [(str(cause["field"]), cause.get("message", "")) for cause in causes if cause.get("field")]
    unknown = islice(_UNKNOWN_FIELD.finditer(str(error)), MAX_FAULTS) if error.status == 400 else ()
    wrong += [(found.group(1), "unknown field; is it misspelt?") for found in unknown]
    return [f"{users_path(field, job, type_, pod)}: {why}" for field, why in wrong]


def _bad_quantity(job: ElasticJob, type_: str) -> str:
    """The first amount that is none: the API server does not say where, or shows a regular expression."""
    spec = job.spec.replica_specs[type_].template["spec"]
    for part in ("containers", "initContainers"):
        for place, container in enumerate(spec.get(part) or ()):
            for kind in KINDS:
                for name, amount in mapping(mapping(container.get("resources")).get(kind)).items():
                    if not is_quantity(amount):
                        path = (
                            f"spec.replicaSpecs.{type_}.template.spec.{part}[{place}].resources.{kind}.{name}"
                        )
                        said = shortened(str(amount), MAX_AMOUNT)
                        return f"{path}: {said!r} is no quantity, such as 500m or 2Gi"
    return ""


def cluster_fault(job: ElasticJob, type_: str) -> str | None:
    """Why a Pod of this type could not be told of its cluster; None if it can, or the user tells it. Pure."""
    if not in_cluster(job) or sets_tf_config(job, type_):
        return None
    fault = config_fault(job)
    return None if fault is None else f"spec.replicaSpecs: {fault}"


def users_path(field: str, job: ElasticJob, type_: str, pod: Object) -> str:
    """A field of the Pod as a field of the job: our container and our variables come before the user's."""
    path = f"spec.replicaSpecs.{type_}.template."
    found = _CONTAINER_FIELD.match(field)
    if found is None:
        return path + field
    part, place, variable = found.group(1), int(found.group(2)), found.group(3)
    own = job.spec.replica_specs[type_].template["spec"].get(part) or ()
    place -= len(pod["spec"].get(part) or ()) - len(own)
    ours = f"the Pod's {field}, which dlr adds"
    if not 0 <= place < len(own):
        return ours
    path, rest = f"{path}spec.{part}[{place}]", field[found.end() :]
    if variable is None:
        return path + rest
    variables = pod["spec"][part][int(found.group(2))]["env"]
    name = variables[int(variable)]["name"] if int(variable) < len(variables) else None
    names = [entry["name"] for entry in own[place].get("env") or ()]
    if name in names:
        return f"{path}.env[{names.index(name)}]{rest}"
    return f"spec.envs.{name}{rest}" if name in job.spec.envs else ours
