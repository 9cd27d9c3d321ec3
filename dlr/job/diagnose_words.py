"""Words for what fails and what is waited for, and what to do about it."""

from __future__ import annotations

from crds.elasticworker import ExitClass

DONE_BY: dict[str, str] = {
    ExitClass.OOM: "ran out of memory",
    ExitClass.HANG: "hung",
    ExitClass.USER_ERROR: "failed by an error of its own",
    ExitClass.KILLED: "was killed from outside",
    ExitClass.PREEMPTED: "was preempted",
    ExitClass.NODE_LOST: "was lost with its node",
    ExitClass.HARDWARE_ERROR: "failed by a fault of its device",
    ExitClass.CHECK_FAILED: "was taken off a node that failed a check",
    ExitClass.DAMAGED_CHECKPOINT: "found a damaged checkpoint in memory",
}
"""What became of a worker, by exit class."""
AFTER: dict[str, str] = {
    ExitClass.OOM: "Give the worker more memory, or let the script keep less; what it did before: "
    "dlr job logs {name} --failed.",
    ExitClass.HANG: "Look at the stacks of all ranks at that moment: dlr job logs {name} --failed.",
    ExitClass.USER_ERROR: "Correct the script or its data; the traceback, and the log that led there: "
    "dlr job logs {name} --failed.",
    ExitClass.KILLED: "Find out who deletes the job's Pods or kills their processes: dlr job events {name}.",
    ExitClass.PREEMPTED: "Nothing is to be done where its node was drained. To be interrupted less by "
    "other jobs, give this one a higher priorityClassName, or nodes of its own.",
    ExitClass.NODE_LOST: "Look at the node: kubectl describe node {node}.",
    ExitClass.HARDWARE_ERROR: "Check the node, and keep it out of service until it passes: "
    "dlr node-check --nodes {nodes}.",
    ExitClass.CHECK_FAILED: "Look at what the check found: kubectl describe nc.",
    ExitClass.DAMAGED_CHECKPOINT: "Check the node, whose memory may be bad: dlr node-check --nodes {nodes}.",
}
"""What to do after such a failure."""
SLOW_ADVICE = (
    "See who is not where the other ranks are, a few times: dlr job stacks {name}; and have the job's nodes "
    "measured, for which its training stops: dlr node-check --job {name}."
)
"""What to do about steps that take longer."""
UNSCHEDULABLE = "Unschedulable"
TOO_LARGE_ADVICE = (
    "No node is large enough for one of its Pods, however free: {why}. Ask for less in "
    "spec.replicaSpecs.worker.template, or add larger nodes; fewer workers do not help."
)
WAITS: dict[str, tuple[str, str]] = {
    UNSCHEDULABLE: (
        "waits for room",
        "Free or add nodes that fit its Pods, or let it begin with fewer workers: "
        "spec.replicaSpecs.worker.minReplicas.",
    ),
    "PodRefused": ("cannot get its Pods", "Do what the message says: a quota, a policy or the template."),
    "PodInvalid": ("cannot get its Pods", "Correct the template; the message names the field."),
    "PodForbidden": ("cannot get its Pods", "Do what the message says: a policy or an account forbids them."),
    "NoReplicas": ("has no workers to train", "Ask for some: dlr job scale {name} --replicas N."),
    "WaitingForDeletion": (
        "waits for an earlier job of its name",
        "See what keeps its Pods: kubectl get pods.",
    ),
}
"""By `status.reason`: what a job waits for, and what to do."""
CANNOT_START = ("has Pods that cannot start", "Do what the message says; kubectl describe pod tells more.")
"""For the reasons of the kubelet's and of others."""
