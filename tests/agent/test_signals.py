"""A signal ends the agent where it is, but never in the middle of work that must not be left half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from agent import signals


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before, names = signal.getsignal(signal.SIGUSR2), os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    signals.handle("SIGUSR2", signals.raise_signal)
    yield
    signal.signal(signal.SIGUSR2, before)
    os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE")
    if names is not None:
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = names


def test_a_signal_is_raised_where_the_agent_is() -> None:
    with pytest.raises(SignalException) as raised:
        signal.raise_signal(signal.SIGUSR2)
    assert raised.value.sigval is signal.SIGUSR2


def test_deferred_work_is_done_whole_and_the_signal_is_not_lost() -> None:
    done = []
    with pytest.raises(SignalException), signals.deferred():
        with signals.deferred():
            signal.raise_signal(signal.SIGUSR2)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with signals.deferred():
        pass  # it has been raised, once


def test_a_handler_that_torch_has_set_is_taken_back() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signals.take_back()
    with pytest.raises(SignalException):
        signal.raise_signal(signal.SIGUSR2)


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_hangup_ends_the_agent_unless_nohup_has_it_ignored(*, is_ignored: bool) -> None:
    script = (
        "import os, signal; from agent import signals\n"
        "signals.handle('SIGTERM,SIGHUP', signals.raise_signal)\n"
        "signals.take_back()\n"
        "print(os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'], flush=True)\n"
        "signal.raise_signal(signal.SIGHUP); print('lives')\n"
        "signals.handle('SIGTERM,SIGHUP', signal.SIG_IGN); signals.handle('SIGHUP', signals.raise_signal)\n"
        "signal.raise_signal(signal.SIGHUP); print('lives')"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    if is_ignored:
        assert (done.stdout.split(), done.returncode) == (["SIGTERM", "lives", "lives"], 0)
    else:
        assert done.stdout.split() == ["SIGTERM,SIGHUP"]
        assert "SignalException: the agent got SIGHUP" in done.stderr


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="there is no signal 'SIGNONE'"):
        signals.handle("SIGUSR2,SIGNONE", signals.raise_signal)
