"""Cgroups of both versions as files; the process tree with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.monitor.accounting import CpuGroup, MemoryGroup, ProcessTree, own_group

UID = "4a5b"
MB = 2**20


class Machine:
    """/proc and /sys/fs/cgroup as this process would find them."""

    def __init__(self, folder: Path, groups: str) -> None:
        self.cgroups, self.proc = folder / "cgroup", folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(groups)

    def group(self, path: str, members: dict[int, str], **files: str) -> Path:
        """`members`: by process id, the uid of the Pod in its environment."""
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("\n".join(map(str, members)))
        for name, text in files.items():
            (folder / name.replace("_", ".", 1)).write_text(text)
        for pid, uid in members.items():
            (self.proc / str(pid)).mkdir(exist_ok=True)
            (self.proc / str(pid) / "environ").write_bytes(f"HOME=/\0DLR_POD_UID={uid}\0".encode())
        return folder

    def own(self, controller: str) -> Path | None:
        return own_group(controller, UID, self.cgroups, self.proc)


V1 = "9:name=systemd:/kubepods/pod1/c1\n4:memory:/kubepods/pod1/c1\n2:cpu,cpuacct:/kubepods/pod1/c1\n0::/\n"
ME = os.getpid()


def test_container_sees_its_group_as_the_root_of_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    files = {"cgroup_type": "domain", "memory_stat": "", "cpu_stat": ""}
    folder = machine.group("", {1: UID, ME: UID}, **files)
    assert machine.own("memory") == machine.own("cpu") == folder
    assert machine.own("cpuacct") is None


@pytest.mark.parametrize("path", ["memory", "memory/kubepods/pod1/c1"])
def test_version_1_is_found_whether_the_whole_hierarchy_is_mounted_or_only_the_group(
    tmp_path: Path, path: str
) -> None:
    machine = Machine(tmp_path, V1)
    folder = machine.group(path, {ME: UID})
    assert machine.own("memory") == folder
    assert machine.own("cpuacct") is None


@pytest.mark.parametrize("stranger", ["", "another"])
def test_group_with_processes_of_others_is_not_ones_own(tmp_path: Path, stranger: str) -> None:
    machine = Machine(tmp_path, V1)
    machine.group("memory", {ME: UID, ME + 1: stranger})
    assert machine.own("memory") is None


def test_children_with_another_environment_and_those_that_have_ended_are_no_strangers(tmp_path: Path) -> None:
    """The warm parent is without what changes from round to round; and something ends at every moment."""
    machine = Machine(tmp_path, V1)
    child, grandchild, ended = range(ME + 1, ME + 4)
    folder = machine.group("memory", {ME: UID, child: "", grandchild: "", ended: UID})
    (machine.proc / f"{child}/stat").write_text(f"{child} (python3) S {ME} " + 40 * "0 ")
    (machine.proc / f"{grandchild}/stat").write_text(f"{grandchild} (python3) S {child} " + 40 * "0 ")
    (machine.proc / f"{ended}/environ").unlink()
    assert machine.own("memory") == folder


def test_working_set_is_without_cache_that_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text(f"{100 * MB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {60 * MB}\ninactive_file {30 * MB}\n")
    assert MemoryGroup(tmp_path).memory_bytes() == 70 * MB
    old = tmp_path / "v1"
    old.mkdir()
    (old / "memory.usage_in_bytes").write_text(f"{100 * MB}\n")
    (old / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {40 * MB}\n")
    assert MemoryGroup(old).memory_bytes() == 60 * MB


def test_cpu_time_of_both_versions_is_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert CpuGroup(tmp_path).cpu_seconds() == 2.5
    (tmp_path / "cpuacct.usage").write_text("1500000000\n")
    assert CpuGroup(tmp_path).cpu_seconds() == 1.5


BUSY = """
import os, time
memory = b"x" * (64 << 20)
child = os.fork()
while time.process_time() < 0.3:
    pass
if child == 0:
    print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.real
def test_tree_has_the_work_and_the_memory_of_children_and_their_children() -> None:
    # Not of this process, which has children of earlier tests.
    command = ["sh", "-c", '"$@"; exit', "sh", sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            tree = ProcessTree(process.pid)
            assert process.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 300
            while tree.cpu_seconds() < 0.55 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert 0.55 <= tree.cpu_seconds() < 5
            # The kernel counts resident pages in batches for each CPU, so a figure may lag a little.
            assert 60 * MB < tree.memory_bytes() < 120 * MB, "what parent and child share counts once"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert tree.cpu_seconds() >= 0.55, "the time of those that ended is not taken back"
