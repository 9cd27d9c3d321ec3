"""The embedded cluster's files: one private folder, so that removing it removes the cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PRIVATE_FOLDER_MODE = 0o700
PRIVATE_FILE_MODE = 0o600


def unexpanded_root() -> Path:
    """`$DLR_HOME`, or `~/.dlr`, with the `~` as it is."""
    return Path(os.environ.get("DLR_HOME") or "~/.dlr")


def default_root() -> Path:
    """`$DLR_HOME`, or `~/.dlr`.

    Raises:
        RuntimeError: the home of the user in it is not known.
    """
    return unexpanded_root().expanduser()


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        scratch.replace(path)
    except BaseException:  # the disk is full, or we are interrupted
        scratch.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Home:
    """The folder of one embedded cluster. Nobody but its owner may enter it."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        return cls(default_root())

    def create(self) -> None:
        """Make the folders, and take away anybody else's access to them."""
        for folder in (self.root, self.pki, self.run, self.logs, self.pods, self.temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER_MODE)
            folder.chmod(PRIVATE_FOLDER_MODE)

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def database(self) -> Path:
        return self.root / "state.sqlite"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def ca_certificate(self) -> Path:
        return self.pki / "ca.crt"

    @property
    def admin_token(self) -> Path:
        return self.pki / "admin.token"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Logs of the cluster's own processes and, below `pods/`, of containers."""
        return self.root / "logs"

    @property
    def pods(self) -> Path:
        """Volumes and working files of Pods, one folder a Pod uid."""
        return self.root / "pods"

    @property
    def temporary(self) -> Path:
        """Temporary files of Pods, one folder each."""
        return self.root / "tmp"

    def pod_temporary(self, pod_uid: str) -> Path:
        """Short, since programs make Unix sockets there: the beginning of a uid tells Pods apart."""
        return self.temporary / pod_uid[:13]

    def pidfile(self, process: str) -> Path:
        return self.run / f"{process}.pid"

    def process_log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def container_log(self, pod_uid: str, container: str, restart_count: int) -> Path:
        """The log of one run of a container.

        Its lines are CRI's: `<RFC 3339 time with nanoseconds> stdout|stderr F|P <text>`. The kubelet writes
        it, the API server's pods/log reads it.
        """
        return self.logs / "pods" / pod_uid / container / f"{restart_count}.log"
