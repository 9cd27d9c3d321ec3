"""The keeper of one container, a process between the kubelet and the container's own.

It outlives nothing: when the kubelet dies its control pipe ends, and when it dies itself the kernel kills the
container. It writes the log, so a busy kubelet never makes a container wait and a dead one loses no line.
With privileges the container is a PID and mount namespace, whose end the kernel makes complete; without, the
shim adopts every descendant and kills what is left.

In:  one JSON line, the container; then `T` (SIGTERM to its main process) or `K` (kill everything); its end
     means kill.
Out: JSON lines: {"started": pid, "time"}, {"refused": text, "reason"},
     {"exited": code, "time", "outOfMemory"}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from localcluster.kubelet import namespaces
from localcluster.kubelet.confinement import Confinement

CONTROL = 0
REPORT = 1
READ_BYTES = 64 * 1024
LINE_MAX_BYTES = 16 * 1024
DRAIN_SECONDS = 2.0  # only a pipe end that was passed outside of the container can keep us this long

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGWINCH,
)
"""Signals for a container's first process, to which a hook sends them as PID 1."""

JSON = dict[str, Any]
Stdio = tuple[int, int, int]


class Refused(Exception):
    """The container cannot run as it is described."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Log:
    """CRI lines: time, stream, F(ull) or P(artial), text."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)  # noqa: PTH103, PTH120
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._partial = {"stdout": b"", "stderr": b""}

    def add(self, stream: str, chunk: bytes) -> None:
        *lines, rest = (self._partial[stream] + chunk).split(b"\n")
        prefix = self._prefix(stream)
        written = bytearray()
        for line in lines:
            while len(line) > LINE_MAX_BYTES:
                written += prefix + b"P " + line[:LINE_MAX_BYTES] + b"\n"
                line = line[LINE_MAX_BYTES:]
            written += prefix + b"F " + line + b"\n"
        while len(rest) > LINE_MAX_BYTES:
            written += prefix + b"P " + rest[:LINE_MAX_BYTES] + b"\n"
            rest = rest[LINE_MAX_BYTES:]
        self._partial[stream] = rest
        self._write(bytes(written))

    def end(self, stream: str) -> None:
        rest = self._partial[stream]
        if rest:
            self._partial[stream] = b""
            self._write(self._prefix(stream) + b"F " + rest + b"\n")

    def _prefix(self, stream: str) -> bytes:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return f"{text}.{nanoseconds:09d}Z {stream} ".encode()

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._file, content) :]


def exit_code(wait_status: int) -> int:
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def tell(descriptor: int, message: JSON) -> None:
    with suppress(BrokenPipeError):  # the kubelet is gone; the control pipe says so too
        os.write(descriptor, json.dumps(message).encode() + b"\n")


# --- inside the container ---------------------------------------------------------------------------------


def execute(spec: JSON, stdio: Stdio, failed: int) -> NoReturn:
    """Become the container's main process, or say through `failed` why not."""
    argv = spec["argv"]
    try:
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        for caught in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, *PASSED_ON):
            signal.signal(caught, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        os.chdir(spec["cwd"])
        try:
            os.execvpe(argv[0], argv, spec["env"])
        except FileNotFoundError:
            why = "no such file or directory" if "/" in argv[0] else "executable file not found in $PATH"
            os.write(failed, f'exec: "{argv[0]}": {why}'.encode())
        except OSError as error:
            os.write(failed, f'exec: "{argv[0]}": {os.strerror(error.errno or 0).lower()}'.encode())
    except OSError as error:
        os.write(failed, f'working directory "{spec["cwd"]}": {os.strerror(error.errno or 0)}'.encode())
    finally:
        os._exit(127)


def start_main(
    spec: JSON, stdio: Stdio, *, die_with_parent: bool, confinement: Confinement | None = None
) -> int:
    """Fork the main process and wait until it has become the command. Returns its pid."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        if die_with_parent:
            namespaces.die_with_parent(parent)
        if confinement:
            confinement.enter()
        execute(spec, stdio, writable)
    os.close(writable)
    failure = os.read(readable, READ_BYTES)
    os.close(readable)
    if failure:
        os.waitpid(pid, 0)
        raise Refused("StartError", failure.decode(errors="replace"))
    return pid


def build_world(spec: JSON, confinement: Confinement | None) -> None:
    """The mounts and names that only this container sees."""
    namespaces.unshare(namespaces.CLONE_NEWNS | namespaces.CLONE_NEWUTS)
    namespaces.mount("none", "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
    flags = namespaces.MS_NOSUID | namespaces.MS_NODEV | namespaces.MS_NOEXEC
    namespaces.mount("proc", "/proc", "proc", flags)
    if spec["hostname"]:
        namespaces.set_hostname(spec["hostname"])
    if confinement:
        confinement.mount()
    try:
        namespaces.mount_volumes(spec["mounts"], spec["env"])
    except OSError as error:
        raise Refused("CreateContainerConfigError", str(error.strerror)) from error


def run_init(spec: JSON, stdio: Stdio, go: int, status: int, confinement: Confinement | None) -> NoReturn:
    """PID 1 of the container: passes signals on, reaps, and ends when the main process has."""
    try:
        namespaces.die_with_parent()
        for descriptor in (0, 1, 2):  # the shim's own pipes to and from the kubelet
            os.dup2(stdio[0], descriptor)
        if not os.read(go, 1):  # the shim died before we were tied to it
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        build_world(spec, confinement)
        main = start_main(spec, stdio, die_with_parent=False, confinement=confinement)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _frame: os.kill(main, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        for descriptor in stdio[1:]:  # so that the log ends when the last process of the container does
            os.close(descriptor)
        tell(status, {"started": 0, "time": time.time()})
        while True:
            pid, wait_status = os.waitpid(-1, 0)
            if pid == main:
                tell(status, {"exited": exit_code(wait_status), "time": time.time()})
                os._exit(0)
    except Refused as refusal:
        tell(status, {"refused": str(refusal), "reason": refusal.reason})
    except BaseException as error:
        tell(status, {"refused": f"{type(error).__name__}: {error}", "reason": "StartError"})
    finally:
        os._exit(1)


# --- outside of the container -----------------------------------------------------------------------------


class Keeper:
    """Starts the container, writes its log, obeys the kubelet, and reports when nothing of it is left."""

    def __init__(self, spec: JSON, commands: bytes) -> None:
        self.spec = spec
        self.commands = commands
        """Came with the description: the kubelet has changed its mind since."""
        self.isolated = spec["isolation"] != "none"
        self.log = Log(spec["log"])
        self.confinement = Confinement(spec["memoryGroup"]) if spec.get("memoryGroup") else None
        self.child = 0
        self.last_word: JSON = {}
        self.wake, wake_writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_writable)
        self.streams: dict[int, str] = {}
        self.status = -1

    def run(self) -> None:
        try:
            self.start()
        except Refused as refusal:
            tell(REPORT, {"refused": str(refusal), "reason": refusal.reason})
            return
        if self.commands:
            self.obey(self.commands)
        poll = select.poll()
        for descriptor in (CONTROL, self.wake, *self.streams, *([self.status] if self.isolated else [])):
            poll.register(descriptor, select.POLLIN)
        alive = True
        while alive:
            for descriptor, _event in poll.poll():
                if descriptor == self.wake:
                    os.read(self.wake, READ_BYTES)
                    alive = alive and not self.reap()
                elif descriptor == CONTROL:
                    if self.obey(os.read(CONTROL, READ_BYTES)):
                        poll.unregister(CONTROL)
                elif descriptor == self.status:
                    if not self.hear():
                        poll.unregister(self.status)
                elif not self.copy(descriptor):
                    poll.unregister(descriptor)
        self.finish()

    def start(self) -> None:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        (out, out_writable), (err, err_writable) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        self.streams = {out: "stdout", err: "stderr"}
        stdio = (null, out_writable, err_writable)
        if self.isolated:
            self.start_isolated(stdio)
        else:
            namespaces.adopt_orphans()
            self.refuse_mounts()
            self.child = start_main(self.spec, stdio, die_with_parent=True, confinement=self.confinement)
            tell(REPORT, {"started": self.child, "time": time.time()})
        for descriptor in stdio:
            os.close(descriptor)

    def start_isolated(self, stdio: Stdio) -> None:
        if self.spec["isolation"] == "user":
            uid, gid = os.getuid(), os.getgid()
            namespaces.unshare(namespaces.CLONE_NEWUSER)
            namespaces.map_own_user(uid, gid)
        namespaces.unshare(namespaces.CLONE_NEWPID)
        go, go_writable = os.pipe2(os.O_CLOEXEC)
        self.status, status_writable = os.pipe2(os.O_CLOEXEC)
        self.child = os.fork()
        if self.child == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (go_writable, self.status, *self.streams):
                os.close(descriptor)
            run_init(self.spec, stdio, go, status_writable, self.confinement)
        os.write(go_writable, b"!")
        for descriptor in (go, go_writable, status_writable):
            os.close(descriptor)

    def refuse_mounts(self) -> None:
        """Refuse volumes outside their own place, since there is no mount namespace."""
        for entry in self.spec["mounts"]:
            if variable := entry.get("elseEnv"):
                self.spec["env"][variable] = entry["source"]
            elif not entry.get("optional") and entry["source"] != entry["target"]:
                raise Refused(
                    "CreateContainerConfigError",
                    f"volume cannot be mounted at {entry['target']}: this host lets its user make neither "
                    "mounts nor user namespaces; run the cluster as root, or use a hostPath volume "
                    "at its own path",
                )

    def hear(self) -> bool:
        """Read a message of the container's PID 1; False at its end."""
        heard = os.read(self.status, READ_BYTES)
        for line in heard.splitlines():
            message = json.loads(line)
            if "started" in message:
                tell(REPORT, message | {"started": self.child})
            else:
                self.last_word = message
        return bool(heard)

    def obey(self, commands: bytes) -> bool:
        """Do what the kubelet asks. True when it can ask no more."""
        if not commands or b"K" in commands:
            self.kill_all()
        elif b"T" in commands:
            self.signal_main(signal.SIGTERM)
        return not commands

    def signal_main(self, number: int) -> None:
        if self.child:
            os.kill(self.child, number)

    def kill_all(self) -> None:
        self.signal_main(signal.SIGKILL)
        if not self.isolated:
            for pid in namespaces.descendants(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def reap(self) -> bool:
        """True when the container is over."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.child:
                self.child = 0
                if self.isolated:
                    self.last_word_of_init(wait_status)
                else:
                    self.last_word = {"exited": exit_code(wait_status), "time": time.time()}
                    self.end_descendants()
                return True

    def last_word_of_init(self, wait_status: int) -> None:
        """The kernel has ended the whole PID namespace by now. A killed PID 1 said nothing itself."""
        while self.hear():
            pass
        if not self.last_word:
            self.last_word = {"exited": exit_code(wait_status), "time": time.time()}

    def end_descendants(self) -> None:
        """End the main process's descendants, which become our children, generation after generation."""
        while True:
            self.kill_all()
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def copy(self, descriptor: int) -> bool:
        chunk = os.read(descriptor, READ_BYTES)
        stream = self.streams[descriptor]
        if chunk:
            self.log.add(stream, chunk)
            return True
        self.log.end(stream)
        del self.streams[descriptor]
        return False

    def finish(self) -> None:
        """The rest of the log, then the report."""
        poll = select.poll()
        for descriptor in self.streams:
            poll.register(descriptor, select.POLLIN)
        left = DRAIN_SECONDS
        deadline = time.monotonic() + left
        while self.streams and left > 0:  # at least once: what the container wrote is in the pipes by now
            for descriptor, _event in poll.poll(left * 1000):
                if not self.copy(descriptor):
                    poll.unregister(descriptor)
            left = deadline - time.monotonic()
        for stream in self.streams.values():
            self.log.end(stream)
        if self.confinement:
            self.last_word["outOfMemory"] = self.confinement.ran_out()
            self.confinement.remove()
        tell(REPORT, self.last_word)


def main() -> None:
    heard = b""
    while b"\n" not in heard:
        chunk = os.read(CONTROL, READ_BYTES)
        if not chunk:
            sys.exit(1)
        heard += chunk
    spec, _, commands = heard.partition(b"\n")
    Keeper(json.loads(spec), commands).run()
