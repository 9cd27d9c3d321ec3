from __future__ import annotations

import pytest

from crds.agent_report import AgentFailure, AgentState
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.meaning import smells_of_hardware
from reconcilers.nodecheck.suspicion import suspected_by_failures
from tests.reconcilers.build import NOW, later, report, worker

FORMED = RendezvousPhase.FORMED
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WORLD = Rendezvous(round=1, phase=FORMED, members=[0, 1], incarnations=[1, 1], formed_at=NOW)


def failing(message: str = "", round_: int = 1, code: int = 1, log_tail: str = "") -> ElasticWorker:
    failure = AgentFailure(
        sequence=1, round=round_, exit_code=code, message=message, log_tail=log_tail, time=NOW
    )
    said = report(0, AgentState.FAILED, round_, failure=failure)
    return worker(0, agent=said.to_wire())


def ended(exit_class: ExitClass, message: str = "boom") -> ElasticWorker:
    suspects = smells_of_hardware(exit_class, message)
    last = {"incarnation": 1, "exitClass": exit_class, "time": later(5), "suspectsHardware": suspects}
    return worker(0, WorkerPhase.FAILED, lastExit=last)


@pytest.mark.parametrize(
    "text",
    [
        ECC,
        "HIP error: uncorrectable ECC error encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "CUDA error: hardware stack error",
        "Error 802: system not yet initialized",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "runc create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded",
        "NCCL error in: ProcessGroupNCCL.cpp:1290, unhandled system error, NCCL version 2.21.5",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    ],
)
def test_errors_of_devices_and_fabric_smell(text: str) -> None:
    assert smells_of_hardware(ExitClass.USER_ERROR, f"Traceback …\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: xid must be positive",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:6712",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms",
        "unhandled system error … ncclSystemError: … It can be also caused by unexpected exit of a remote peer.",
        "ncclSystemError: … Last error: Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
    ],
)
def test_the_users_errors_and_what_follows_from_a_peers_death_do_not(text: str) -> None:
    assert not smells_of_hardware(ExitClass.USER_ERROR, text)


def test_a_hardware_exit_smells_whatever_it_says_and_an_end_from_outside_never() -> None:
    assert smells_of_hardware(ExitClass.HARDWARE_ERROR, "")
    for outside in (ExitClass.KILLED, ExitClass.PREEMPTED, ExitClass.NODE_LOST):
        assert not smells_of_hardware(outside, ECC)


BROKEN = WORLD.model_copy(update={"phase": RendezvousPhase.REFORMING})
NEXT = WORLD.model_copy(update={"round": 2, "formed_at": later(60)})


@pytest.mark.parametrize(
    ("before", "said", "world", "at", "suspected"),
    [
        (None, failing(ECC), WORLD, 3, 3),
        (3, failing(ECC), WORLD, 9, 3),
        (3, failing(ECC), BROKEN, 9, 3),
        (None, failing(log_tail=ECC), BROKEN, 3, 3),
        (None, failing(code=201), BROKEN, 3, 3),
        (3, failing(ECC), NEXT, 61, 3),
        (None, failing("ValueError: boom"), WORLD, 3, None),
        (None, ended(ExitClass.HARDWARE_ERROR), WORLD, 9, 5),
        (None, ended(ExitClass.USER_ERROR, ECC), WORLD, 9, 5),
        (7, ended(ExitClass.HARDWARE_ERROR), WORLD, 9, 7),
        (None, ended(ExitClass.NODE_LOST, ECC), WORLD, 9, None),
        (None, ended(ExitClass.USER_ERROR), WORLD, 9, None),
    ],
)
def test_hardware_is_suspected_from_a_failure_of_this_round_or_the_end_of_a_pod_on(
    before: float | None, said: ElasticWorker, world: Rendezvous, at: float, suspected: float | None
) -> None:
    known = None if before is None else later(before)
    found = suspected_by_failures(known, [said], world, later(at))
    assert found == (None if suspected is None else later(suspected))
