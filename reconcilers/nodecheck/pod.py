"""The Pods that test nodes for a NodeCheck: their template, their deletion, and their NetworkPolicy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from controller.errors import ApiError
from controller.reconciler import Request, Result
from controller.resources import NETWORKPOLICIES, Object, Resource
from crds import names
from crds.elasticworker import ElasticWorker
from crds.nodecheck import Accelerator, NodeCheck
from reconcilers.observed import run_policy
from reconcilers.observed.builder import (
    GPU_RESOURCE,
    ContainerEnvironment,
    containers,
    copied,
    fixed_variables,
    grace_seconds,
    heartbeat_seconds,
    key_variable,
    owned_name,
    plain,
    pod_of,
)
from reconcilers.runtime.kinds import NODECHECKS
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.worker.assignment import OtherAssignment
from reconcilers.worker.companions import Companions, network_policy_of
from reconcilers.worker.pod_refusal import PodSource

CHECK_COMMAND = ["dlr", "check-worker"]
CHECK_HEARTBEAT_TIMEOUT_SECONDS = 30.0
CHECK_GRACE_SECONDS = 5
SHARED_MEMORY = "/dev/shm"
NOBODYS_USER = 65532
"""User that owns no files; our images run as the same."""
ANY_TAINT = {"operator": "Exists"}


@dataclass(frozen=True)
class CheckAssignment(OtherAssignment):
    """A worker that tests its node until the check has its verdicts or cannot be carried out."""

    check: NodeCheck
    node: Object | None
    image: str

    resource: ClassVar[Resource] = NODECHECKS
    heartbeat_timeout_seconds: ClassVar[float] = CHECK_HEARTBEAT_TIMEOUT_SECONDS

    @property
    def released(self) -> bool:
        return self.check.status.finished or self.check.metadata.deletion_timestamp is not None

    @property
    def workers(self) -> int:
        return len(self.check.status.nodes)

    def build_pod(self) -> Object:
        return build_check_pod(self.check, self.worker, self.node, self.image)

    @property
    def source(self) -> PodSource:
        template = self.check.spec.template or {"spec": {"containers": ()}}
        return PodSource("the Pods of the check", "spec.template", template)

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Time until a Pod is deleted that has not ended after the check: it never started, or hangs on a
        broken node, and would occupy its GPUs for ever. Other Pods stay for their logs."""
        if self.check.metadata.deletion_timestamp is not None:
            return None if pod_ended else 0.0
        template, completed = self.check.spec.template, self.check.status.completion_time
        if pod_ended or completed is None:
            return None
        grace = CHECK_GRACE_SECONDS if template is None else grace_seconds(template["spec"])
        return run_policy.seconds_to_leave(grace, completed, now)


def build_check_pod(check: NodeCheck, worker: ElasticWorker, node: Object | None, image: str) -> Object:
    """The Pod object to create for the worker.

    Args:
        node: the Node to check, with its number of GPUs; None if it is gone.
    """
    own = check.spec.template
    template = _own_template(image) if own is None else copied(own)
    spec = template["spec"]
    spec.pop("nodeName", None)  # it would bypass the scheduler, which knows whether the GPUs are free
    if not spec["containers"][0].get("command"):
        spec["containers"][0]["command"] = CHECK_COMMAND
    spec["tolerations"] = [*(spec.get("tolerations") or ()), ANY_TAINT]
    if check.spec.accelerator is not Accelerator.NONE and not any(map(_gpus_asked, containers(spec))):
        _ask_for_gpus(spec["containers"][0], node)
    owner = {names.ENV_CHECK_NAME: plain(check.metadata.name)}
    beat = heartbeat_seconds(len(check.status.nodes), CHECK_HEARTBEAT_TIMEOUT_SECONDS)
    fixed = fixed_variables(owner, worker, spec, beat)
    uid = check.metadata.uid
    environment = ContainerEnvironment(fixed, of_agent=key_variable(uid), account=owned_name(uid))
    return pod_of(worker, template, environment)


def _own_template(image: str) -> Object:
    """The default template, which meets the Pod Security Standard `restricted`.

    NCCL exchanges data in /dev/shm, which has only 64 MiB by default. Temporary files go there, too, since
    nothing else is writable.
    """
    container = {
        "name": "check",
        "image": image,
        "env": [{"name": "TMPDIR", "value": SHARED_MEMORY}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}],
    }
    return {
        "spec": {
            "terminationGracePeriodSeconds": CHECK_GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": NOBODYS_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        }
    }


def _gpus_asked(container: Object) -> bool:
    resources = container.get("resources") or {}
    return any(GPU_RESOURCE in (resources.get(kind) or {}) for kind in ("limits", "requests"))


def _ask_for_gpus(container: Object, node: Object | None) -> None:
    gpus = (node or {}).get("status", {}).get("allocatable", {}).get(GPU_RESOURCE)
    if gpus and str(gpus) != "0":
        resources = container["resources"] = container.get("resources") or {}
        resources["limits"] = {**(resources.get("limits") or {}), GPU_RESOURCE: gpus}


class CheckCompanionReconciler(WithTools):
    """Keeps the NetworkPolicy of a NodeCheck with Pods of its own."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._companions = Companions(tools)
        self._checks = tools.cache.store(NODECHECKS)
        self._policies = tools.cache.store(NETWORKPOLICIES)

    async def reconcile(self, request: Request) -> Result:
        raw = self._checks.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or raw["spec"].get("jobName"):
            return Result()
        failures: list[ApiError] = []
        with self._companions.reporting(raw, NETWORKPOLICIES.kind, failures):
            found = self._policies.get(request.namespace, owned_name(raw["metadata"]["uid"]))
            await self._companions.keep(NETWORKPOLICIES, raw, found, network_policy_of(raw))
        if failures:
            raise failures[0]
        return Result()
