"""Runs one command inside a running container: probes of kind exec, and lifecycle hooks.

Reads its task as one JSON line from stdin: {pid, isolation, argv, env, cwd, memoryGroup}. The output is the
command's, the exit code too (128 + n after signal n, 126 or 127 if it cannot be run).

SIGTERM ends the command and reaps it. A SIGKILL would leave a zombie for the host's init, and until it is
reaped no container with a PID namespace can end: https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from localcluster.kubelet import namespaces
from localcluster.kubelet.confinement import Confinement


def join_container(pid: int, isolation: str) -> None:
    kinds = [
        ("mnt", namespaces.CLONE_NEWNS),
        ("uts", namespaces.CLONE_NEWUTS),
        ("pid", namespaces.CLONE_NEWPID),
    ]
    if isolation == "user":
        kinds.insert(0, ("user", namespaces.CLONE_NEWUSER))
    opened = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in kinds]
    for descriptor, kind in opened:
        namespaces.setns(descriptor, kind)


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    namespaces.die_with_parent(number=signal.SIGTERM)
    confinement = Confinement(task["memoryGroup"]) if task["memoryGroup"] else None
    if task["isolation"] != "none":
        join_container(task["pid"], task["isolation"])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()  # only children are in the joined PID namespace
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            namespaces.die_with_parent()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if confinement:
                confinement.enter()
            os.chdir(task["cwd"])
            os.execvpe(task["argv"][0], task["argv"], task["env"])
        except OSError as error:
            os.write(2, f"{task['argv'][0]}: {error.strerror}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def end(_number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    _, wait_status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(wait_status)
    os._exit(code if code >= 0 else 128 - code)
