from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent.supervision import post_mortem
from agent.supervision.post_mortem import shared_memory_hint as hint
from crds.elasticworker import ExitClass
from reconcilers.failure.meaning import smells_of_hardware

LOADER = (
    "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem.shutil, "disk_usage", lambda _: SimpleNamespace(total=64 << 20))


@pytest.mark.parametrize(
    ("message", "log_tail", "signal"),
    [
        (LOADER, "", None),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1>", "", None),
        (
            "the process was killed by SIGABRT",
            "NCCL WARN Error while creating shared memory segment",
            "SIGABRT",
        ),
        ("the process was killed by SIGBUS", "", "SIGBUS"),
    ],
)
def test_want_of_shared_memory_is_told_with_its_remedy(
    message: str, log_tail: str, signal: str | None
) -> None:
    sentence = hint(message, log_tail, signal)
    assert sentence.startswith("/dev/shm has 64 MiB here")
    assert "emptyDir with `medium: Memory`" in sentence
    assert not smells_of_hardware(ExitClass.UNKNOWN, sentence)


def test_other_failures_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint("ValueError: bad data", LOADER, None) == "", "what was caught and logged is not the reason"
    assert hint("the process was killed by SIGSEGV", "", "SIGSEGV") == ""
    monkeypatch.setattr(post_mortem.shutil, "disk_usage", lambda _: SimpleNamespace(total=8 << 30))
    assert hint("the process was killed by SIGBUS", "", "SIGBUS") == ""
