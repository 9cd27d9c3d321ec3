"""The ElasticWorld of a job: a projection of the stored ElasticJob, which its agents watch instead. Pure.

The ElasticJob's status decides the world, with its resourceVersion as the fence. The projection is written
next, before all other consequences of the status. Every reconcile compares it with the stored object, and so
repairs a crash between the two writes, an edit or a deletion.

The rest of the status is for people, and written at most once a second.
"""

from __future__ import annotations

from typing import Any

from pydantic.alias_generators import to_camel

from controller.resources import Object
from crds import names
from crds.agent_report import MAX_REQUEST
from crds.cluster import first_port
from crds.rendezvous import World
from crds.replica_groups import TrainingGroups
from reconcilers.conditions.life import WORKERS_READY
from reconcilers.observed.builder import owned_metadata
from reconcilers.observed.domains import shared_labels
from reconcilers.observed.groups import group_labels
from reconcilers.observed.ownership import owner_uids
from reconcilers.observed.status_patch import merge_patch
from reconcilers.runtime.acts import Act, RequestVerb, create
from reconcilers.runtime.kinds import ELASTICWORLDS
from reconcilers.world.rendezvous import WORDS

FIRST_WORLD = "0"
"""Index of the only world of a job."""
WRITE_SECONDS = 1.0
"""Shortest time between two writes of fields that are only for people."""
FOR_PEOPLE = frozenset(
    {
        *("reason", "message", "conditions", "warnings", "replicas", "replicaStatuses"),
        *("rendezvous", "goodput", "groups", "replicaGroup"),
    }
)
"""Fields of a job's status that may wait: counts, messages and figures, which are computed again."""
WORDS_OF_WORLD = frozenset(map(to_camel, WORDS))
"""Fields of a world that may wait, too."""
WORDS_OF_GROUP = frozenset(("version",))
"""Fields of a replica group's progress that may wait: all its workers reach each new version."""
STATE_OF_ACCOUNT = frozenset(("state", "since"))
TRAINING_GROUPS_FIELDS = frozenset(map(to_camel, TrainingGroups.model_fields))
WORLD_FIELDS = frozenset(field.alias or name for name, field in World.model_fields.items())


def writes_of_world(job: Object, stored: Object | None) -> tuple[Act, ...]:
    """Return the writes that bring the stored ElasticWorld up to date, in order; empty if it is.

    Args:
        stored: the ElasticWorld of its name, which may belong to an earlier job.
    """
    wanted = world_of(job)
    if stored is None and job["metadata"].get("deletionTimestamp"):
        return ()  # garbage collection has removed it, and would remove another
    if stored is None:
        return (create(ELASTICWORLDS, wanted),)
    metadata = stored["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    if owner_uids(stored) != owner_uids(wanted):
        stale = Act(RequestVerb.DELETE, ELASTICWORLDS, name, namespace, uid=metadata["uid"])
        return stale, create(ELASTICWORLDS, wanted)
    patch = merge_patch(stored["spec"], wanted["spec"])
    if not patch:
        return ()
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": patch}
    return (Act(RequestVerb.PATCH, ELASTICWORLDS, name, namespace, body),)


def seconds_to_write(status_patch: Object, stored: Object, age_seconds: float) -> float:
    """Return the time until a patch of a job's status is due; 0 or less means now.

    Phase, world, state of the account, status and reason of a condition or warning, and all other decisions
    are due at once: their cause may be visible in this reconcile only.
    """
    parts = ("rendezvous", "goodput", "replicaGroup")
    world, account, group = (status_patch.get(field, {}) for field in parts)
    is_for_people = (
        status_patch.keys() <= FOR_PEOPLE
        and _states(stored | status_patch) == _states(stored)
        and world is not None
        and world.keys() <= WORDS_OF_WORLD
        and account is not None
        and not account.keys() & STATE_OF_ACCOUNT
        and group is not None
        and group.keys() <= WORDS_OF_GROUP
    )
    return WRITE_SECONDS - age_seconds if is_for_people and status_patch else 0.0


def world_of(job: Object) -> Object:
    """Return the ElasticWorld of a job."""
    metadata = owned_metadata(job, job["metadata"]["name"])
    labels = {names.LABEL_JOB_UID: job["metadata"]["uid"], names.LABEL_WORLD: FIRST_WORLD}
    metadata["labels"] |= labels | group_labels(job)
    return ELASTICWORLDS.manifest(metadata, spec=world_spec(job))


def world_spec(job: Object) -> Object:
    """Return the spec of the ElasticWorld, without empty fields."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    if (membership := status.get("membership")) is not None:
        together = {field: value for field, value in membership.items() if field in TRAINING_GROUPS_FIELDS}
        return _present(jobPhase=status.get("phase"), replicas=together)
    rendezvous = status.get("rendezvous") or {}
    policy = spec.get("elasticPolicy") or {}
    return {field: value for field, value in rendezvous.items() if field in WORLD_FIELDS} | _present(
        jobPhase=status.get("phase"),
        activeCheck=status.get("activeCheck"),
        asked=_asked(job.get("metadata") or {}, rendezvous),
        cluster=_cluster(spec, status.get("cluster")),
        hangTimeoutSeconds=policy.get("hangTimeoutSeconds"),
        topologyLevels=len(
            shared_labels(policy.get("domain"), (spec.get("nodeCheck") or {}).get("topologyKeys") or ())
        ),
        failures=sum((status.get("restarts") or {}).values()),
        startedAt=status.get("startTime"),
        hasTrained=(status.get("goodput") or {}).get("lastStep") is not None,
    )


def _asked(metadata: Object, rendezvous: Object) -> Object:
    annotations = metadata.get("annotations") or {}
    return _present(
        stacks=(annotations.get(names.ANNOTATION_STACKS) or "")[:MAX_REQUEST],
        hang=rendezvous.get("hangSince") is not None,
        checkpoint=rendezvous.get("checkpointAwaitedSince") is not None,
    )


def _cluster(spec: Object, cluster: Object | None) -> Object | None:
    if not cluster:
        return None
    specs = spec.get("replicaSpecs") or {}
    ports = {type_: first_port(each.get("template") or {}) for type_, each in specs.items()}
    of_status = {field: cluster[field] for field in ("version", "tasks", "lost") if field in cluster}
    return of_status | {"ports": ports}


def _states(status: Object) -> set[tuple[str, str | None, str | None]]:
    """Return the states of conditions and warnings, without `WorkersReady`, which is computed again."""
    found = (*(status.get("conditions") or ()), *(status.get("warnings") or ()))
    return {
        (each["type"], each.get("status"), each.get("reason"))
        for each in found
        if each["type"] != WORKERS_READY
    }


def _present(**fields: Any) -> Object:
    return {name: value for name, value in fields.items() if value}
