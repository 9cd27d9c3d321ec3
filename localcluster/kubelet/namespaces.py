"""The kernel calls behind a container: namespaces, mounts, and ties between the lives of processes.

The shim of every container imports this before anything runs, so it imports only what starts fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000

# statvfs spells most mount flags as mount(2) does; relatime is the exception.
_KEPT_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME
_ST_RELATIME = 0x1000

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, filesystem: str | None, flags: int) -> None:
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            filesystem.encode() if filesystem else None,
            ctypes.c_ulong(flags),
            None,
        ),
        f"mount {target}",
    )


def set_hostname(name: str) -> None:
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Get a signal when the thread that started this process ends. Children do not inherit it.

    Name the parent where nothing else tells that it was dead before this was called.
    """
    _check(_libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0), "prctl")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans(wanted: bool = True) -> None:
    """Become the parent of every descendant whose own parent dies, `setsid` and double fork or not."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0), "prctl")


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Show `source` at `target`, in this process's mount namespace only."""
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        status = os.statvfs(target)
        kept = status.f_flag & _KEPT_FLAGS  # an unprivileged namespace may not drop flags it was given
        if status.f_flag & _ST_RELATIME:
            kept |= MS_RELATIME
        mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def map_own_user(uid: int, gid: int) -> None:
    """After CLONE_NEWUSER: be the same user inside as outside."""
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib is slow to import
            file.write(content)


def make_mount_point(source: str, target: str) -> None:
    """Create a mount point. A container runtime does so in an image; here it stays on the host, empty."""
    if os.path.exists(target):  # noqa: PTH110
        return
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def mount_volumes(mounts: list[dict[str, Any]], environment: dict[str, str]) -> None:
    """Bind every mount; one that names an `elseEnv` may fail, and says there where its files are.

    Sources are opened first: an earlier mount may hide a later one's source.
    """
    try:
        opened = [(entry, os.open(entry["source"], os.O_PATH | os.O_CLOEXEC)) for entry in mounts]
    except OSError as error:
        raise OSError(error.errno, f"volume has no files at {error.filename}: {error.strerror}") from error
    for entry, descriptor in opened:
        target = entry["target"]
        try:
            make_mount_point(entry["source"], target)
            bind(f"/proc/self/fd/{descriptor}", target, read_only=entry["readOnly"])
        except OSError as error:
            if entry.get("optional"):
                continue
            if variable := entry.get("elseEnv"):
                environment[variable] = entry["source"]
                continue
            why = f"volume cannot be mounted at {target}: {os.strerror(error.errno or 0)}"
            if not os.path.exists(target):  # noqa: PTH110
                why += "; containers share this host's files, so create that path, or mount elsewhere"
            raise OSError(error.errno, why) from error
        finally:
            os.close(descriptor)


def _children() -> dict[int, list[int]]:
    """Parent to living children, from /proc."""
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found.setdefault(int(parent), []).append(int(entry))
    return found


def children(root: int) -> list[int]:
    return _children().get(root, [])


def descendants(root: int) -> list[int]:
    """Every living process below `root`: for hosts without PID namespaces."""
    below = _children()
    found: list[int] = []
    frontier = [root]
    while frontier:
        found += below.get(parent := frontier.pop(), [])
        frontier += below.get(parent, [])
    return found
