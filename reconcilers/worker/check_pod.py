"""The Pod that checks a node: the NodeCheck's template or, without one, a small Pod of our own.

It is pinned to the node, whatever keeps others away from it, and asks for all GPUs of the node: what is not
asked for is not seen, and what somebody else uses cannot be tested.
"""

from __future__ import annotations

from controller.resources import Object
from crds import names
from crds.elasticworker import ElasticWorker
from crds.nodecheck import Accelerator, NodeCheck
from reconcilers.observed.builder import (
    GPU_RESOURCE,
    Environment,
    containers,
    copied,
    fixed_variables,
    heartbeat_seconds,
    key_variable,
    owned_name,
    plain,
    pod_of,
)

CHECK_COMMAND = ["dlr", "check-worker"]
CHECK_HEARTBEAT_TIMEOUT_SECONDS = 30.0
CHECK_GRACE_SECONDS = 5
SHARED_MEMORY = "/dev/shm"
NOBODYS_USER = 65532
"""The user of our images, too; it owns nothing."""
ANY_TAINT = {"operator": "Exists"}


def build_check_pod(check: NodeCheck, worker: ElasticWorker, node: Object | None, image: str) -> Object:
    """The Pod object to create for the worker.

    Args:
        node: the Node to check, for its GPUs; None if it is gone.
        image: of the Pod where the NodeCheck has no template.
    """
    own = check.spec.template
    template = _own_template(image) if own is None else copied(own)
    spec = template["spec"]
    spec.pop("nodeName", None)  # it would go past the scheduler, which knows whether the GPUs are free
    if not spec["containers"][0].get("command"):
        spec["containers"][0]["command"] = CHECK_COMMAND
    spec["tolerations"] = [*(spec.get("tolerations") or ()), ANY_TAINT]
    if check.spec.accelerator is not Accelerator.NONE and not any(map(_gpus_asked, containers(spec))):
        _ask_for_gpus(spec["containers"][0], node)
    owner = {names.ENV_CHECK_NAME: plain(check.metadata.name)}
    beat = heartbeat_seconds(len(check.status.nodes), CHECK_HEARTBEAT_TIMEOUT_SECONDS)
    fixed = fixed_variables(owner, worker, spec, beat)
    uid = check.metadata.uid
    environment = Environment(fixed, of_agent=key_variable(uid), account=owned_name(uid))
    return pod_of(worker, template, environment)


def _own_template(image: str) -> Object:
    """A Pod that every namespace takes, also one that enforces the Pod Security Standard `restricted`.

    NCCL exchanges data in /dev/shm, for which container runtimes leave only 64 MiB. Temporary files go
    there, too: nothing else can be written to.
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
