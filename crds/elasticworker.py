"""ElasticWorker: one slot of a job, or one node of a NodeCheck.

The controller writes `spec` and `status`, the agent writes `status.agent`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from crds.agent_report import EARLIER_WORKER, LATER_POD, LATER_REPORT, AgentReport
from crds.failure_policy import FailureAction
from crds.job_status import FailureBudget
from crds.model import (
    Conditions,
    Index,
    Model,
    Name,
    ObjectMeta,
    ResourceRequirements,
    cel,
    cut,
    first_fault,
    rules,
)
from crds.texts import ending

ATOMIC = {"x-kubernetes-list-type": "atomic"}

MAX_MESSAGE = 2_048
"""Bytes of `status.message`, in JSON."""
MAX_LIVES = 16
"""Entries of `status.history`."""
MAX_LIFE_REASON = 96
MAX_DOMAIN = 63
"""Characters of a domain, which is the value of a label."""
MAX_LEAVING = 8
"""Entries of `status.leavingPods`."""
MAX_EXIT_TEXT = 1_024
"""Bytes of an exit's message, in JSON, and of the end of its log. The agent's report has more."""


def _end(text: Any) -> Any:
    return ending(text, MAX_EXIT_TEXT) if isinstance(text, str) else text


class WorkerPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ExitClass(StrEnum):
    """Why a worker's processes or its Pod ended."""

    SUCCEEDED = "Succeeded"
    USER_ERROR = "UserError"
    OOM = "OOM"
    KILLED = "Killed"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    HARDWARE_ERROR = "HardwareError"
    CHECK_FAILED = "CheckFailed"
    HANG = "Hang"
    DAMAGED_CHECKPOINT = "DamagedCheckpoint"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> ExitClass | None:
        """Read the class of a later version, which a controller that is set back may find, as unknown."""
        return cls.UNKNOWN if isinstance(value, str) else None


class ElasticWorkerSpec(Model):
    """Slot, and desired incarnation of its Pod. Written by the controller."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("has(self.jobName) != has(self.checkName)", "name the job or the check, and not both"),
            cel(
                "self.index == oldSelf.index && self.type == oldSelf.type",
                "index and type cannot be changed: a worker stays one slot",
            ),
            cel(
                "has(self.jobName) == has(oldSelf.jobName) && (has(self.jobName) ? "
                "self.jobName == oldSelf.jobName : self.checkName == oldSelf.checkName)",
                "jobName and checkName cannot be changed: a worker stays with its owner",
            ),
        )
    )

    job_name: Name | None = None
    """Name of the ElasticJob that it belongs to."""
    check_name: Name | None = None
    """Name of the NodeCheck for which it tests a node."""
    type: Annotated[str, Field(max_length=32)]
    index: Index
    """Stable node rank of the slot."""
    incarnation: Annotated[int, Field(ge=1, le=99_999)] = 1
    """Incarnation of the Pod, raised to replace it: the Pod of incarnation n is named `<name>-<n>`."""
    resources: ResourceRequirements | None = None
    """Resources of the first container, instead of the template's."""
    memory_before: Annotated[int, Field(ge=1)] | None = None
    """Memory in bytes of the previous incarnation, if that ran out of memory and this one has more."""
    excluded_nodes: Annotated[
        list[Name], Field(max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default_factory=list)
    """Nodes that failed or refused Pods of this slot; the Pod avoids them if it can."""
    lost_nodes: Annotated[
        list[Name], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default_factory=list)
    """Nodes that had fallen silent with Pods of the job just before the incarnation was requested; the Pod
    avoids them if it can."""
    excluded_domain: Annotated[str, Field(max_length=MAX_DOMAIN)] | None = None
    """Domain whose switch failed Pods of this slot; the Pod avoids it if it can."""
    faulty_nodes: Annotated[
        list[Name], Field(max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default_factory=list)
    """Nodes that a check found faulty; the Pod never runs there."""
    reported_nodes: Annotated[
        list[Name], Field(max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default_factory=list)
    """Nodes with a fault reported by their agents or kubelets when the incarnation was requested; the Pod
    never runs there."""
    replaced_for: ExitClass | None = None
    """Exit class of the failure for which the previous incarnation was replaced while its Pod still ran."""
    node_name: Name | None = None
    """The only node where the Pod may run."""

    @property
    def owner_name(self) -> str:
        """Name of the job or the check."""
        return self.job_name or self.check_name or ""


class WorkerExit(Model):
    """Last end of an incarnation or of its training processes."""

    incarnation: Annotated[int, Field(ge=1)]
    exit_class: ExitClass
    reason: Annotated[str, Field(max_length=256)] = ""
    exit_code: int | None = None
    rank: Index | None = None
    message: Annotated[str, cut(MAX_EXIT_TEXT), Field(max_length=MAX_EXIT_TEXT)] = ""
    log_tail: Annotated[str, BeforeValidator(_end), Field(max_length=MAX_EXIT_TEXT)] = ""
    node_name: Name = ""
    node_uid: Annotated[str, Field(max_length=64)] = ""
    """Uid of its Node; empty if the controller could not see it."""
    pod_uid: Annotated[str, Field(max_length=64)] = ""
    """Uid of the Pod that ended."""
    container: Name = ""
    """Name of the container that ended, if not the training container."""
    failures_in_pod: Annotated[int, Field(ge=1)] | None = None
    """Number of container failures counted so far for a Pod whose containers are restarted."""
    action: FailureAction | None = None
    """Action of the rule of the job's failurePolicy that matched, if any did."""
    suspects_hardware: bool | None = None
    """Whether the node's hardware may be the cause, so that a check precedes the next world."""
    planned: bool | None = None
    """Whether the Pod was removed with time to stop, or before it ran; this is no failure."""
    in_good_order: bool | None = None
    """Whether the Pod was being deleted with time to stop while its containers still ran."""
    time: datetime


class SlotLife(Model):
    """One incarnation of the slot, for the job's timeline."""

    incarnation: Annotated[int, Field(ge=1)]
    node_name: Name = ""
    created_at: datetime
    """Time when the incarnation was requested."""
    running_at: datetime | None = None
    """Time when its Pod was first seen running."""
    ended_at: datetime | None = None
    exit_class: ExitClass | None = None
    planned: bool | None = None
    """Whether its Pod was removed with time to stop, or before it ran."""
    reason: Annotated[str, cut(MAX_LIFE_REASON), Field(max_length=MAX_LIFE_REASON)] = ""


_OF_NO_EARLIER_POD = cel("self.incarnation >= oldSelf.incarnation", LATER_POD)
_IN_ORDER = cel(
    "!has(self.agent) || !has(oldSelf.agent) || self.agent.incarnation != oldSelf.agent.incarnation || "
    "(self.agent.podUid == oldSelf.agent.podUid ? (has(self.agent.sequence) ? self.agent.sequence : 0) >= "
    "(has(oldSelf.agent.sequence) ? oldSelf.agent.sequence : 0) : "
    "has(self.podUid) && self.agent.podUid == self.podUid)",
    LATER_REPORT,
)
_OF_A_POD = cel(
    "!has(self.status) || !has(self.status.agent) || self.status.agent.incarnation <= self.spec.incarnation",
    EARLIER_WORKER,
)


class ElasticWorkerStatus(Model):
    """The state of the Pod, written by the controller, and the report of its agent (`agent`)."""

    model_config = ConfigDict(json_schema_extra=rules(_IN_ORDER))

    observed_incarnation: int | None = None
    """Incarnation to which phase, Pod and node belong."""
    phase: WorkerPhase | None = None
    message: Annotated[str, cut(MAX_MESSAGE), Field(max_length=MAX_MESSAGE)] = ""
    """Why the Pod is not running yet, or how it ended."""
    pod_name: Name | None = None
    pod_uid: Annotated[str, Field(max_length=64)] | None = None
    node_name: Name | None = None
    node_uid: Annotated[str, Field(max_length=64)] | None = None
    """Uid of that Node when the Pod was first seen there."""
    topology: (
        Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=8, json_schema_extra=ATOMIC)]
        | None
    ) = None
    """Values of the node's labels that the job's `elasticPolicy.domain` and `nodeCheck.topologyKeys` name, in
    their order."""
    domain: Annotated[str, Field(max_length=MAX_DOMAIN)] | None = None
    """Domain of the node, by the job's `elasticPolicy.domain`; until a new Pod has a node, the domain of the
    last one."""
    standby: bool | None = None
    """Set while the worker stands by to replace one that is lost. Written by the job's reconciler."""
    restarts: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Pods of this slot that ended and had to be replaced, by exit class."""
    restart_count: int | None = None
    """Sum of `restarts`."""
    failures: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    """Failures among `restarts`, by exit class, without planned stops and ends after a failure in place."""
    failure_budget: FailureBudget | None = None
    """Share of the job's `restartCount` that these have used."""
    quick_exits: int | None = None
    """Consecutive Pods that ended by themselves soon after their start; the next Pod is delayed
    accordingly."""
    last_exit: WorkerExit | None = None
    history: Annotated[
        list[SlotLife], cut(MAX_LIVES), Field(max_length=MAX_LIVES, json_schema_extra=ATOMIC)
    ] = Field(default_factory=list)
    """The last incarnations, the current one at the end."""
    leaving_pods: Annotated[list[Name], Field(max_length=MAX_LEAVING, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """Pods of this slot that are leaving and may still run training processes. The next Pod joins no world
    before they have ended."""
    conditions: Conditions = Field(default_factory=list)
    agent: Annotated[AgentReport | None, Field(json_schema_extra=rules(_OF_NO_EARLIER_POD))] = None
    _report_fault: str = PrivateAttr("")

    @property
    def report_fault(self) -> str:
        """Why the stored `agent` could not be read; empty if it could."""
        return self._report_fault

    @model_validator(mode="wrap")
    @classmethod
    def _without_unreadable_report(cls, stored: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Treat an unreadable report as absent, since any process in the Pod may write it; the controller
        wrote the rest."""
        try:
            return handler(stored)
        except ValidationError as error:
            if not isinstance(stored, dict) or stored.get("agent") is None:
                raise
            status = handler({name: value for name, value in stored.items() if name != "agent"})
            status._report_fault = first_fault(error)
            return status


class ElasticWorker(Model):
    """Slot of an ElasticJob with a stable rank, or node of a NodeCheck. Created by the controller."""

    model_config = ConfigDict(json_schema_extra=rules(_OF_A_POD))

    metadata: ObjectMeta
    spec: ElasticWorkerSpec
    status: ElasticWorkerStatus = Field(default_factory=ElasticWorkerStatus)
