"""Which left-behind processes are ended, of a process table in memory."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from agent.processes import orphans as orphans_module
from agent.processes.orphans import Orphans
from agent.processes.stat import ProcessStat

AGENT = os.getpid()
SPARE, ITS_LOADER, ITS_DAEMON, LATER, UPLOADER, UPLOADERS_CHILD = range(2_000_000_000, 2_000_000_006)


def process(pid: int, parent: int, session: int) -> ProcessStat:
    return ProcessStat(pid, parent, session, False, 0, 0, 0)


def test_what_a_spare_left_running_ends_with_it_and_the_scripts_own_daemons_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = [
        process(SPARE, AGENT, SPARE),
        process(ITS_LOADER, SPARE, SPARE),
        process(ITS_DAEMON, ITS_LOADER, ITS_DAEMON),
        process(UPLOADER, AGENT, UPLOADER),
        process(UPLOADERS_CHILD, UPLOADER, UPLOADER),
    ]
    killed = list[int]()

    def kill(pid: int, _: int) -> None:
        killed.append(pid)
        table[:] = [each for each in table if each.pid != pid]

    monkeypatch.setattr(orphans_module, "descendants", lambda: list(table))
    monkeypatch.setattr(orphans_module.os, "kill", kill)
    orphans = Orphans("A=")
    orphans.started([SPARE, UPLOADER])
    sessions = orphans.sessions_below([SPARE])
    assert sessions == {SPARE, ITS_DAEMON}
    table[:] = [replace(each, parent=AGENT) for each in table if each.pid != SPARE]
    table.append(process(LATER, ITS_LOADER, SPARE))
    assert set(orphans.kill(sessions=sessions)) == {*killed} == {ITS_LOADER, ITS_DAEMON, LATER}
    assert {each.pid for each in table} == {UPLOADER, UPLOADERS_CHILD}
