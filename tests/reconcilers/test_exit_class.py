from __future__ import annotations

from typing import Any

import pytest

from crds.agent_report import AgentFailure, FailureCause
from crds.elasticworker import ExitClass
from reconcilers.failure.budgets import MAX_SIGNATURE, signature_of
from reconcilers.failure.meaning import MEANING
from reconcilers.observed.exit_class import (
    CAUSES,
    classify_pod,
    classify_process,
    end_of_deleted,
    text_follows_from_a_peer,
)
from tests.reconcilers.build import failure, pod, terminated

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"


RUNS = {"name": "main", "state": {"running": {}}}
RUNC = "failed to create containerd task: OCI runtime create failed: runc create failed: "


def cannot_start(message: str) -> dict[str, Any]:
    end = {"exitCode": 128, "reason": "StartError", "message": message}
    return pod(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": end}}])


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return pod(phase="Failed", conditions=[condition])


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (pod(phase="Failed", containerStatuses=[terminated(1)]), ExitClass.USER_ERROR),
        (pod(phase="Failed", containerStatuses=[terminated(139)]), ExitClass.USER_ERROR),
        (pod(phase="Failed", containerStatuses=[terminated(137)]), ExitClass.KILLED),
        (pod(phase="Failed", containerStatuses=[terminated(137, "OOMKilled")]), ExitClass.OOM),
        (pod(phase="Failed", containerStatuses=[terminated(201)]), ExitClass.HARDWARE_ERROR),
        (
            pod(phase="Failed", containerStatuses=[terminated(137, "ContainerStatusUnknown")]),
            ExitClass.NODE_LOST,
        ),
        (
            cannot_start(RUNC + "nvidia-container-cli: device error: 0: unknown device"),
            ExitClass.HARDWARE_ERROR,
        ),
        (cannot_start(RUNC + 'exec: "trian.py": executable file not found in $PATH'), ExitClass.USER_ERROR),
        (pod(phase="Failed", reason="Evicted"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="OutOfnvidia.com/gpu"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="UnexpectedAdmissionError"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="TopologyAffinityError"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="NodePorts"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="TaintToleration"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="VolumeAttachmentLimitExceeded"), ExitClass.PREEMPTED),
        (pod(phase="Failed", reason="SysctlForbidden"), ExitClass.UNKNOWN),
        (pod(deleted=True), ExitClass.KILLED),
        (
            pod(phase="Failed", containerStatuses=[terminated(3), terminated(137, name="proxy")]),
            ExitClass.USER_ERROR,
        ),
        (pod(deleted=True, containerStatuses=[RUNS, terminated(1, name="proxy")]), ExitClass.KILLED),
        (pod(phase="Failed", initContainerStatuses=[terminated(14, name="rsync")]), ExitClass.USER_ERROR),
        (disrupted("EvictionByEvictionAPI"), ExitClass.PREEMPTED),
        (disrupted("PreemptionByScheduler"), ExitClass.PREEMPTED),
        (disrupted("TerminationByKubelet"), ExitClass.PREEMPTED),
        (disrupted("DeletionByTaintManager"), ExitClass.NODE_LOST),
        (disrupted("DeletionByPodGC"), ExitClass.NODE_LOST),
        (disrupted("SomethingNewer"), ExitClass.PREEMPTED),
        (
            disrupted("TerminationByKubelet", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".'),
            ExitClass.USER_ERROR,
        ),
    ],
)
def test_pod_ends_are_classified(ended: dict[str, Any], expected: ExitClass) -> None:
    assert classify_pod(ended).exit_class is expected


LOW = "The node was low on resource: {}. Threshold quantity: 100Mi, available: 9Mi. "
LARGER = "Container {} was using 9Gi, request is 1Gi, has larger consumption of {}. "


@pytest.mark.parametrize(
    ("message", "expected", "container"),
    [
        (LOW.format("memory") + LARGER.format("main", "memory"), ExitClass.OOM, ""),
        (
            "The node was low on resource: memory. Container main was using 3Gi, which exceeds its request of 0.",
            ExitClass.OOM,
            "",
        ),
        (LOW.format("memory") + LARGER.format("proxy", "memory"), ExitClass.OOM, "proxy"),
        (
            LOW.format("ephemeral-storage") + LARGER.format("main", "ephemeral-storage"),
            ExitClass.USER_ERROR,
            "",
        ),
        (LOW.format("memory"), ExitClass.PREEMPTED, ""),
        (LOW.format("pids"), ExitClass.PREEMPTED, ""),
        ("The node had condition: [MemoryPressure]. ", ExitClass.PREEMPTED, ""),
    ],
)
def test_48_an_eviction_for_more_than_the_pod_asked_for_is_its_own_doing(
    message: str, expected: ExitClass, container: str
) -> None:
    containers = {"containers": [{"name": "main"}, {"name": "proxy"}]}
    for evicted in (
        pod(phase="Failed", reason="Evicted", message=message),
        disrupted("TerminationByKubelet", message),
    ):
        end = classify_pod(evicted | {"spec": containers})
        assert (end.exit_class, end.other_container) == (expected, container)


@pytest.mark.parametrize(
    ("taint", "expected"),
    [
        ("ToBeDeletedByClusterAutoscaler", ExitClass.PREEMPTED),
        ("aws-node-termination-handler/spot-itn", ExitClass.PREEMPTED),
        ("node.kubernetes.io/out-of-service", ExitClass.NODE_LOST),
        ("somebody.else/reason", ExitClass.KILLED),
    ],
)
def test_who_is_driven_away_or_deleted_from_a_node_that_goes_was_not_killed(
    taint: str, expected: ExitClass
) -> None:
    """The taint manager says the same of a node that is unreachable and of one that a spot notice takes."""
    node = {"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]}}
    assert classify_pod(pod(deleted=True), node).exit_class is expected
    driven_away = classify_pod(disrupted("DeletionByTaintManager"), node).exit_class
    assert driven_away is (expected if expected is ExitClass.NODE_LOST else ExitClass.PREEMPTED)
    assert end_of_deleted(None).exit_class is ExitClass.KILLED


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (failure(), ExitClass.USER_ERROR),
        (failure(exit_code=-9), ExitClass.KILLED),
        (failure(exit_code=137), ExitClass.KILLED),
        (failure(exit_code=-11, message="the process was killed by SIGSEGV"), ExitClass.USER_ERROR),
        (failure(exit_code=202), ExitClass.HARDWARE_ERROR),
        (failure(exit_code=-9, cause="OOM"), ExitClass.OOM),
        (failure(exit_code=None, cause="Hang"), ExitClass.HANG),
        (failure(cause="Device"), ExitClass.HARDWARE_ERROR),
        (
            failure(message="RuntimeError: CUDA error: uncorrectable ECC error encountered"),
            ExitClass.HARDWARE_ERROR,
        ),
        (failure(message=GLOO), ExitClass.UNKNOWN),
        (failure(message=GLOO, exit_code=-9), ExitClass.KILLED),
    ],
)
def test_process_failures_are_classified(told: AgentFailure, expected: ExitClass) -> None:
    assert classify_process(told) is expected


TABLE = """
Succeeded          free
UserError          repeatable shares_count
OOM                needs_new_pod
Killed             free taken
Preempted          free taken avoids_node
NodeLost           free taken avoids_node
HardwareError      avoids_node needs_new_pod
CheckFailed        free avoids_node
Hang               repeatable
DamagedCheckpoint  free
Unknown            shares_count
"""


def test_what_follows_from_each_exit_class() -> None:
    rows = {class_: {*marks} for class_, *marks in map(str.split, TABLE.strip().splitlines())}
    assert {*MEANING} == {*ExitClass} == {*rows}
    for class_, meaning in MEANING.items():
        assert {name for name, is_set in vars(meaning).items() if is_set is True} == rows[class_]
        assert meaning.verb and bool(meaning.advice) is (class_ not in ("Succeeded", "Unknown"))


def test_every_cause_but_a_kill_from_outside_has_a_class_that_spends_something() -> None:
    free = {cause for cause in FailureCause if cause in CAUSES and MEANING[CAUSES[cause]].free}
    assert free == {FailureCause.KILLED_CHILD}


@pytest.mark.parametrize(
    "text",
    [
        GLOO,
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there "
        "was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error",
        "TrainingError: step 7 failed\nTraceback …\n"
        + GLOO
        + "\nThe above exception was the direct cause of …",
        "The client socket has timed out after 300000ms while trying to connect to (10.0.0.1, 29500).",
    ],
)
def test_what_follows_from_a_peers_death_is_known_by_its_text(text: str) -> None:
    assert text_follows_from_a_peer(text)


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "DistNetworkError: The server socket has failed to listen on any local network address. EADDRINUSE",
        "DistBackendError: NCCL error: invalid usage, ncclInvalidUsage: Duplicate GPU detected",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version "
        "2.28.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
        "error.\nLast error:\nBootstrap : no socket interface found",
        "",
    ],
)
def test_the_programs_own_errors_are_not_a_peers(text: str) -> None:
    assert not text_follows_from_a_peer(text)


def test_the_log_tells_only_where_there_is_no_exception() -> None:
    watchdog = "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    assert text_follows_from_a_peer("the process was killed by SIGABRT", watchdog)
    assert not text_follows_from_a_peer("ValueError: bad", watchdog)


def test_signature_leaves_out_what_differs_from_one_time_to_the_next() -> None:
    one = (
        "RuntimeError: step 17 of 0x7f3a failed in /tmp/torchelastic_ab12cd/7 at 10.0.0.7:53486\nTraceback …"
    )
    other = "RuntimeError: step 3 of 0x55aa01 failed in /tmp/torchelastic_xyz987/9 at 10.0.1.9:1"
    assert signature_of(one) == signature_of(other)
    assert signature_of("KeyError: 'a'") != signature_of("KeyError: 'b'")
    assert len(signature_of("word " * 500)) == MAX_SIGNATURE
    assert signature_of("\n\n  ValueError: bad  \nmore") == "ValueError: bad"
