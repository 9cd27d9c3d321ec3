"""Judges whether a worker's Pod runs, and how it ended; nothing else does. Pure.

A Pod has succeeded if its agent reports success. Without an agent (no report, no launcher that has begun or
is certain to, see `command.py`), exit code 0 of its training container is success, too. It has failed if its
training container ended otherwise, or if it is deleted, lost, or cannot start. The Pod's phase alone decides
nothing: a sidecar may outlive training or crash after it, and a shell may hide an exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crds import names
from crds.agent_report import AgentFailure, AgentReport, AgentState
from crds.elasticworker import ExitClass, WorkerPhase
from reconcilers.observed.containers import (
    Container,
    Role,
    begun_launcher,
    containers_of,
    exit_words,
    failed,
    has_ended,
    may_run,
    succeeded,
    training_container,
)
from reconcilers.observed.exit_class import (
    CONTAINER_REASONS,
    KILL_EXIT_CODES,
    REBOOT_EXIT_CODES,
    PodEnd,
    classify_container,
    classify_pod,
    classify_process,
    end_of_deleted,
    is_taken,
    says_nothing,
)
from reconcilers.observed.silence import Silence, SilenceVerdict
from reconcilers.observed.start import USUAL

PROCESS_FAILED = "ProcessFailed"
"""Reason of the end of a Pod whose exit code hides the failure that its agent reported."""
LEFT_EARLY = "LeftEarly"
"""Reason of the end of a training container with exit code 0 whose agent has not reported success."""

UNREACHABLE, HEARTBEAT_LOST = "Unreachable", "HeartbeatLost"
OF_SILENT_NODES = (UNREACHABLE, HEARTBEAT_LOST)
"""Reasons of ends with a node that Kubernetes may still call ready."""
NODE_DELETED = "NodeDeleted"
"""Reason of the end of a Pod whose Node was deleted. A new Node of the same name is another machine."""
WAS_DELETED = " was deleted"
"""Last words of the message of a `NODE_DELETED` end, after the node's name."""

KEEP_THE_EXIT_CODE = "keep its exit code by `exec`, `wait` or `set -o pipefail`"
"""Advice for a shell that hides its launcher's exit code: in place, in the background, in a pipe."""

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Situation:
    """Evidence by which a Pod is judged."""

    pod: Object | None
    """None if it is gone."""
    report: AgentReport | None = None
    """Report of its own agent."""
    is_unreadable: bool = False
    """Whether its agent's report cannot be read."""
    node: Object | None = None
    """Its node, or its last one."""
    deleted_node: str = ""
    """Name of its node, if that Node was deleted."""
    node_lost: str | None = None
    """Reason why its node counts as lost; None if it does not."""
    silence: Silence | None = None
    """Silence of its agent; None if that was never heard."""
    trains: bool = True
    """Whether it is a job's Pod, whose agent reports on training; a check's agent does not."""

    @property
    def has_agent(self) -> bool:
        """Whether its agent has reported, or its launcher has begun or is certain to."""
        return self.report is not None or self.is_unreadable or bool(self.launcher)

    @property
    def launcher(self) -> str:
        """The launcher that has begun in the training container, or is certain to; empty without one."""
        if not self.trains or self.pod is None:
            return ""
        annotations = self.pod.get("metadata", {}).get("annotations") or {}
        certain = str(annotations.get(names.ANNOTATION_LAUNCHER, ""))
        return certain or begun_launcher(training_container(containers_of(self.pod)).newest_end)


@dataclass(frozen=True)
class PodJudgement:
    """Phase of a Pod, and its end or its failures so far."""

    phase: WorkerPhase
    end: PodEnd | None = None
    """End of a failed Pod; of a Pod that goes on, the last failure of a container that starts again."""
    failures: int = 0
    """Number of container failures of a Pod that goes on."""


def judge(seen: Situation) -> PodJudgement:
    """Judge whether the Pod runs, or how it ended."""
    pod = seen.pod
    if pod is None:
        return _ended_well() if _reported_success(seen) else _failed(_taken(end_of_deleted(seen.node), seen))
    containers = containers_of(pod)
    training = training_container(containers)
    if _is_over(pod, containers) or "deletionTimestamp" in pod.get("metadata", {}):
        return _of_an_end(seen, pod, containers)
    if training.newest_end is not None and succeeded(training.newest_end) and not seen.has_agent:
        return _ended_well()  # by restartPolicy Always it begins again and again
    if _reported_success(seen) and training.end is not None and _says_nothing(training.end):
        return _ended_well()
    if seen.node_lost:
        lost = PodEnd(ExitClass.NODE_LOST, "NodeLost", message=seen.node_lost)
        return _ended_well() if _reported_success(seen) else _failed(lost)
    if seen.silence is not None and seen.silence.is_loss and may_run(training):
        end = _of_silence(pod["metadata"]["name"], seen.silence)
        return _ended_well() if _reported_success(seen) else _failed(end)
    return _alive(seen, pod, containers, training)


def is_over(pod: Object) -> bool:
    """Whether nothing of a Pod trains any more, or ever will."""
    return _is_over(pod, containers_of(pod))


def failed_sidecars(pod: Object | None) -> str:
    """Return the sidecars that failed by themselves with their exit codes, in words; empty without one."""
    beside = [each for each in containers_of(pod or {}) if each.role in (Role.SIDECAR, Role.COMPANION)]
    ends = ((each, each.newest_end) for each in beside)
    clauses = [
        f"{each.role} {each.name}: {exit_words(end.get('exitCode'))}"
        for each, end in ends
        if end is not None and failed(end) and end.get("exitCode") not in KILL_EXIT_CODES
    ]
    return "; ".join(clauses)


def reported_failure(report: AgentReport | None) -> AgentFailure | None:
    """Return the failure of the last round that the agent acted on; earlier ones have been handled."""
    if report is None or report.failure is None or is_well(report.failure):
        return None
    return report.failure if report.failure.round >= report.observed_round else None


def is_well(failure: AgentFailure) -> bool:
    """Whether it is no failure, but the answer of a process that was asked about a hang and does not hang."""
    return failure.exit_code is None and failure.cause is None


def _ended_well() -> PodJudgement:
    return PodJudgement(WorkerPhase.SUCCEEDED)


def _failed(end: PodEnd) -> PodJudgement:
    return PodJudgement(WorkerPhase.FAILED, end)


def _reported_success(seen: Situation) -> bool:
    """Whether its agent reported that training succeeded."""
    return seen.report is not None and seen.report.state is AgentState.SUCCEEDED


def _of_silence(pod_name: str, silence: Silence) -> PodEnd:
    if silence.verdict is SilenceVerdict.UNREACHABLE:
        return PodEnd(ExitClass.NODE_LOST, UNREACHABLE, message=f"{pod_name} does not answer: {silence.node}")
    unheard = f"no heartbeat from {pod_name} for {silence.seconds:.0f} s"
    if silence.verdict is SilenceVerdict.NODE_LOST:
        message = f"{unheard}, and {silence.node}"
        return PodEnd(ExitClass.NODE_LOST, HEARTBEAT_LOST, message=message)
    message = f"{unheard}, although {silence.node}: its agent is stuck"
    return PodEnd(ExitClass.UNKNOWN, "AgentSilent", message=message)


def _is_over(pod: Object, containers: Sequence[Container]) -> bool:
    if has_ended(pod) or training_container(containers).is_over:
        return True
    return any(each.role is Role.INIT and each.is_over and failed(each.end) for each in containers)


def _of_an_end(seen: Situation, pod: Object, containers: Sequence[Container]) -> PodJudgement:
    training, taken = training_container(containers), is_taken(pod)
    end = _end_of(pod, containers)
    if _reported_success(seen):
        is_well_ended = taken or end is None or _says_nothing(end)
        return _ended_well() if is_well_ended else _failed(classify_pod(pod, seen.node))
    if taken or not succeeded(end):
        found = classify_pod(pod, seen.node)
        return _failed(_taken(found, seen) if taken else _refined_by_report(found, seen.report))
    return _failed(_hidden_failure(seen, training, end)) if seen.has_agent else _ended_well()


def _taken(end: PodEnd, seen: Situation) -> PodEnd:
    """Return the end of a Pod that was taken away; if its Node was deleted, it was lost with that."""
    if seen.deleted_node and end.exit_class in (ExitClass.KILLED, ExitClass.NODE_LOST):
        return PodEnd(ExitClass.NODE_LOST, NODE_DELETED, message=f"its node {seen.deleted_node}{WAS_DELETED}")
    return _refined_by_report(end, seen.report)


def _refined_by_report(end: PodEnd, report: AgentReport | None) -> PodEnd:
    """Return the end of a training container, with the exit class of its agent's report if that says more.

    A launcher without restarts exits with its process's code, which is 1 even if the kernel killed a data
    loader for its memory, or a device failed.
    """
    failure = reported_failure(report)
    is_plain = end.exit_class is ExitClass.USER_ERROR and bool(end.container) and not end.other_container
    if not is_plain:
        return end
    if failure is None:
        is_cut_off = end.exit_code in REBOOT_EXIT_CODES and _was_cut_off(report)
        return replace(end, exit_class=ExitClass.KILLED) if is_cut_off else end
    return replace(end, exit_class=classify_process(failure))


def _was_cut_off(report: AgentReport | None) -> bool:
    """Whether an agent was ended from outside: by itself it leaves only after a failure or success."""
    return report is not None and report.state not in (AgentState.FAILED, AgentState.SUCCEEDED)


def _end_of(pod: Object, containers: Sequence[Container]) -> Object | None:
    """Return the end of the training container; phase Succeeded without container statuses is exit code 0."""
    says_no_more = all(each.status is None for each in containers)
    if says_no_more and pod.get("status", {}).get("phase") == "Succeeded":
        return {"exitCode": 0}
    return training_container(containers).end


def _says_nothing(end: Object) -> bool:
    """Whether an end fits a training that had succeeded before: exit code 0, or killed."""
    return succeeded(end) or says_nothing(end)


def _hidden_failure(seen: Situation, training: Container, end: Object | None) -> PodEnd:
    """Return the failure behind exit code 0 of a training container whose agent has not reported success."""
    whose: dict[str, Any] = {"container": training.name, "role": training.role}
    report, failure = seen.report, reported_failure(seen.report)
    if failure is not None:
        return PodEnd(classify_process(failure), PROCESS_FAILED, failure.exit_code, **whose)
    if end is not None and end.get("reason") in CONTAINER_REASONS:
        return classify_container(training, end)
    why = "its agent's report cannot be read"
    if not seen.is_unreadable:
        why = f"{seen.launcher} has not reported once, see its log"
    if report is not None:
        why = f"its agent reported {report.state} in round {report.observed_round}"
    if _was_cut_off(report):  # as after a restart of its node
        message = f"exit code 0 without success ({why}): it was ended from outside, or {KEEP_THE_EXIT_CODE}"
        return PodEnd(ExitClass.KILLED, LEFT_EARLY, 0, message, **whose)
    message = f"exit code 0 without success ({why}): {KEEP_THE_EXIT_CODE}"
    return PodEnd(ExitClass.UNKNOWN, LEFT_EARLY, 0, message, **whose)


def _alive(
    seen: Situation, pod: Object, containers: Sequence[Container], training: Container
) -> PodJudgement:
    # By Kubernetes' rules a Pod in phase Running has no container that waits for its first start.
    waits_again = training.newest_end is not None and training.waiting_reason not in USUAL
    is_up = pod.get("status", {}).get("phase") == "Running" and not waits_again
    runs = training.is_running or is_up
    phase = WorkerPhase.RUNNING if runs else WorkerPhase.PENDING
    counting = [each for each in containers if _counts(each, training)]
    failures = sum(each.restarted_ends for each in counting)
    if not failures or _reported_success(seen):
        return PodJudgement(phase)
    return PodJudgement(phase, _newest_failure(seen, counting, training), failures)


def _counts(container: Container, training: Container) -> bool:
    """Whether its failures are the worker's; a native sidecar's are until training has started."""
    if container.role is Role.SIDECAR:
        return not training.has_started
    return container.role in (Role.TRAINING, Role.INIT)


def _newest_failure(seen: Situation, counting: Sequence[Container], training: Container) -> PodEnd | None:
    """Return the end of a failed container that was, or will be, started again; None without one."""
    if succeeded(training.newest_end) and seen.has_agent:
        return _hidden_failure(seen, training, training.newest_end)
    suspects = [training] if training.has_started else counting
    ends = ((each, each.newest_end) for each in suspects)
    found = (classify_container(each, end) for each, end in ends if end is not None and failed(end))
    return next((_refined_by_report(each, seen.report) for each in found), None)
