"""The one table of Xids, and that agent, probes and controller judge by it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import re2

from crds import xids
from crds.agent_report import AgentFailure
from crds.elasticworker import ExitClass
from crds.xids import XIDS, Effect, XidBlame
from healthcheck.probes.device_faults import xid_faults, xid_notes
from healthcheck.probes.kernel_log import KernelLogLine
from healthcheck.probes.kernel_log import xids as xids_in
from reconcilers.failure.meaning import smells_of_hardware
from reconcilers.observed.exit_class import classify_pod, classify_process


def kernel_line(number: int) -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1234, name=python"


def class_of(text: str) -> ExitClass:
    failure = AgentFailure(
        sequence=1, round=1, local_rank=0, exit_code=1, message=text, time=datetime(2026, 1, 2, tzinfo=UTC)
    )
    return classify_process(failure)


@pytest.mark.parametrize(
    ("number", "exit_class", "is_checked", "ends_training", "condemns"),
    [
        (13, ExitClass.USER_ERROR, False, False, False),
        (31, ExitClass.USER_ERROR, False, False, False),
        (43, ExitClass.USER_ERROR, False, False, False),
        (45, ExitClass.USER_ERROR, False, False, False),
        (63, ExitClass.USER_ERROR, False, False, False),  # for the record: the row has been remapped
        (39, ExitClass.USER_ERROR, True, False, False),
        (109, ExitClass.USER_ERROR, True, True, False),  # a program's kernel, or a device: NVIDIA resets it
        (94, ExitClass.HARDWARE_ERROR, True, True, False),  # the process died of it, the device goes on
        (79, ExitClass.HARDWARE_ERROR, True, True, True),
        (48, ExitClass.HARDWARE_ERROR, True, True, True),
        (999, ExitClass.HARDWARE_ERROR, True, True, False),  # nobody knows it
    ],
)
def test_agent_probes_and_controller_agree(
    number: int, exit_class: ExitClass, is_checked: bool, ends_training: bool, condemns: bool
) -> None:
    line = kernel_line(number)
    assert class_of(f"RuntimeError: CUDA error\n{line}") is exit_class
    ended = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": line}}}]}
    assert classify_pod({"status": ended}).exit_class is exit_class
    assert smells_of_hardware(exit_class, line) is is_checked
    assert xids.ends_training(number) is ends_training
    found = list(xids_in([KernelLogLine(60.0, line)]))
    assert bool(xid_faults(found)) is condemns
    assert bool(xid_notes(found)) is not condemns


@pytest.mark.parametrize("compiled", [re.compile(xids.NUMBER_PATTERN), re2.compile(xids.NUMBER_PATTERN)])
def test_numbers_are_found_as_drivers_write_them(compiled: re.Pattern[str]) -> None:
    text = (
        f"{kernel_line(79)}\nNVRM: Xid (0000:03:00): 14, Channel 00000001\nXid 48 on GPU 3 (00000000:3B:00.0): …\n"
        "kernel: Xid (62, pid: 5678)\nsee https://docs.nvidia.com/deploy/xid-errors/ and MyXid 7, Xids 8"
    )
    assert [found[1] for found in compiled.finditer(text)] == ["79", "14", "48", "62"]


def test_several_numbers_are_as_bad_as_the_worst() -> None:
    assert class_of(f"{kernel_line(45)}\n{kernel_line(48)}") is ExitClass.HARDWARE_ERROR


def test_the_table_is_consistent() -> None:
    assert all(xid.words for xid in XIDS.values())
    blamed_on_programs = {xid.effect for xid in XIDS.values() if xid.blame is XidBlame.APPLICATION}
    assert blamed_on_programs == {Effect.PROCESS}, "what a program does, it does to itself"
