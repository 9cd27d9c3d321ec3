"""ElasticWorld: the one object that the agents of a job watch.

The controller derives it from the ElasticJob (`reconcilers/job/published.py`), so it has a spec and no
status. Facts for people are in the ElasticJob: an edit there reaches the agents only if it changes this
object.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from crds.agent_report import MAX_REQUEST
from crds.cluster_status import Tasks
from crds.model import Model, Name, ObjectMeta
from crds.phases import JobPhase
from crds.rendezvous import World
from crds.replica_groups import TrainingGroups


class MemberRequests(Model):
    """Requests to the agents of the members."""

    stacks: Annotated[str, Field(max_length=MAX_REQUEST)] = ""
    """Request for the stacks of all training processes. Each new text is one request."""
    hang: bool = False
    """Whether the world is given up because it hangs. Its members report where their processes are."""
    checkpoint: bool = False
    """Whether workers wait for a checkpoint to join, so that the next one is reported at once."""


class ServerCluster(Model):
    """The tasks of a job with parameter servers, which has no world."""

    version: Annotated[int, Field(ge=1)]
    """Number of the version, which rises when the parameter servers change."""
    tasks: Annotated[dict[str, Tasks], Field(max_length=3)] = Field(default_factory=dict)
    """Slots in the order of their tasks, by replica type."""
    ports: Annotated[dict[str, int], Field(max_length=6)] = Field(default_factory=dict)
    """First port of each replica type."""
    lost: Tasks = Field(default_factory=list)
    """Slots of parameter servers that do not run."""


class ElasticWorldSpec(World):
    """The world, and other facts on which agents act."""

    job_phase: JobPhase | None = None
    """Phase of the ElasticJob. Agents leave when it has finished or is suspended."""
    active_check: Name | None = None
    """NodeCheck that the idle workers take part in; no world is formed meanwhile."""
    asked: MemberRequests | None = None
    cluster: ServerCluster | None = None
    hang_timeout_seconds: Annotated[int, Field(gt=0)] | None = None
    """Seconds without a step after which a world hangs; unset for the default."""
    topology_levels: Annotated[int, Field(ge=0)] = 0
    """Number of labels in the job's `nodeCheck.topologyKeys` and `elasticPolicy.domain`."""
    failures: Annotated[int, Field(ge=0)] = 0
    """Worlds that broke because training processes failed."""
    started_at: datetime | None = None
    """Start of the job, for the rate of its failures."""
    has_trained: bool = False
    """Whether a step of the job has been reported."""
    replicas: TrainingGroups | None = None
    """Groups that train together, of a job with replica groups, which has no world of its own."""


class ElasticWorld(Model):
    """The world of an ElasticJob's workers, as their agents follow it. Written by the controller."""

    metadata: ObjectMeta
    spec: ElasticWorldSpec
