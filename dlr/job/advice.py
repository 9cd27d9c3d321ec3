"""Advice about failures and waits. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from crds import names
from crds.checkpoint_files import SAVER_PROCESS
from dlr.kube.api import JSON
from reconcilers.observed.resources import format_bytes
from reconcilers.observed.suitable import Sizes, allocatable, amounts_of
from reconcilers.runtime.refused import WRITE_REFUSED

WITHOUT_LAUNCHER = re.compile(
    r"KeyError: '(?:(?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))'"
    r"|environment variable \w{1,40} expected, but not set"
)
"""Errors of a script that was not started as a rank; the second is torch.distributed's."""
LAUNCHER_ADVICE = (
    "Start the script by torchrun or dlr run in the container's command, in place of python: they set RANK, "
    "WORLD_SIZE and the others, and report to dlr."
)
"""Advice after such an error."""
DELETED_NODE_ADVICE = (
    "Do nothing if an autoscaler or a person removed the node; otherwise find out what deletes the cluster's "
    "nodes."
)
"""Advice about a node that was deleted under a worker."""
SLOW_ADVICE = (
    "Compare the ranks' stacks a few times: dlr job stacks {name}; then measure the job's nodes, which stops "
    "its training: dlr node-check --job {name}."
)
"""Advice about steps that take longer than before."""
TROUBLE_ADVICE: dict[str, str] = {
    "StorageFails": "Look at the storage: full, read-only, away, or a path that not all ranks see",
    SAVER_PROCESS: "See in the log why the process that saves ended: dlr job logs {name}; a file of the "
    "script's folder may have the name of a module that it imports, and SIGKILL usually means too little "
    "memory",
    "SaveSkipped": "Raise the Checkpointer's persist_every, or use faster storage",
    "CheckpointLost": "Save to storage more often, by persist_every, or set memoryCheckpoint.replicas: 1",
    "MemoryFails": "Do what the message says of the memory: the Pod's limit, /dev/shm, or the GPU's driver",
    "SlotTooSmall": "Set memoryCheckpoint.size to the size in the message",
    "StateNotSaved": "Remove the value that the message names from the Checkpointer's state, or replace it",
    "NoSteps": "See where all processes are: dlr job stacks {name}; if they train, call dlr.report(step) in "
    "the script",
    "WorkersGivenUp": "Correct what made them fail, dlr job logs {name} --failed, and try one again by "
    "kubectl delete ew WORKER -n {namespace}",
}
"""Advice about a warning, by its type, its reason, or the subject of its message."""
UNSCHEDULABLE = "Unschedulable"
TOO_LARGE_ADVICE = (
    "No node is large enough for one of its Pods, however free: {why}. Ask for less in "
    "spec.replicaSpecs.worker.template, or add larger nodes; fewer workers do not help."
)
WAITS: dict[str, tuple[str, str]] = {
    UNSCHEDULABLE: ("waits for room", "Free or add nodes that fit its Pods"),
    "PodRefused": ("cannot get its Pods", "Do what the message says: a quota, a policy or the template."),
    "PodInvalid": ("cannot get its Pods", "Correct the template; the message names the field."),
    "PodForbidden": ("cannot get its Pods", "Do what the message says: a policy or an account forbids them."),
    "NoReplicas": ("has no workers to train", "Ask for some: dlr job scale {name} --replicas N."),
    "NamesTaken": ("cannot make its workers", "Delete those that the message names; no job owns them."),
    WRITE_REFUSED: ("cannot make its workers", "Do what the message says: a quota, a policy or a right."),
    "WaitingForDeletion": (
        "waits for an earlier job of its name",
        "See what keeps its Pods: kubectl get pods -n {namespace}.",
    ),
}
"""What a job waits for, and advice, by `status.reason`."""
GROWS = "it takes in more workers by itself"
FEWER_WORKERS = (
    ", or let it begin with fewer workers: spec.replicaSpecs.worker.minReplicas, which is {least} now"
)
CANNOT_START = (
    "has Pods that cannot start",
    "Do what the message says; kubectl describe pod {pod} -n {namespace} tells more.",
)
"""Text and advice for other reasons, such as the kubelet's."""


def too_large(job: JSON, nodes: Sequence[JSON]) -> str:
    """Explain why no node is large enough for one Pod of the job, even an empty one.

    Empty if a node is large enough, or no node can be read.
    """
    template = (job["spec"]["replicaSpecs"].get(names.WORKER) or {}).get("template") or {}
    raised = ((job.get("status") or {}).get("resources") or {}).get(names.WORKER) or {}
    wanted = amounts_of((template.get("spec") or {}).get("containers") or ()) | amounts_of(
        [{"resources": raised}]
    )
    sizes = Sizes(nodes)
    if not nodes or not wanted or next(sizes.with_room_for(wanted), None) is not None:
        return ""
    for name, amount in wanted.items():
        most = allocatable(sizes.largest.get(name) or {}, name)
        if most < amount:
            has = _written(name, most)
            return f"a Pod asks for {_written(name, amount)} of {name}, and the largest node has {has}"
    requests = ", ".join(f"{_written(name, amount)} of {name}" for name, amount in wanted.items())
    return f"a Pod asks for {requests}, and no node has all of that"


def _written(name: str, amount: Fraction) -> str:
    is_bytes = name in ("memory", "ephemeral-storage") and amount.denominator == 1
    return format_bytes(int(amount)) if is_bytes else f"{float(amount):g}"
