"""Checkpoints where a container allows little: 64 MiB of /dev/shm, a read-only root, a user that is not root.

In a mount namespace of its own, which takes root to make.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
mount --make-rprivate / && mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm &&
    mount -t tmpfs -o size=512m,mode=1777 tmpfs /mnt && mount -o remount,bind,ro / || exit 77
export TMPDIR=/mnt HOME=/mnt PYTHONDONTWRITEBYTECODE=1
# The capability is for the interpreter alone, which may be in the home of root.
setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps +dac_read_search \\
    --ambient-caps +dac_read_search "$0" -m tests.checkpoint.places /mnt &
until test -e /mnt/ready; do kill -0 $! || break; sleep 0.1; done
mount --bind /mnt/trains/path /mnt/trains/path && mount -o remount,bind,ro /mnt/trains/path
touch /mnt/sealed
wait $!
"""


def test_memory_and_storage_work_and_what_cannot_be_written_is_told() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes mount namespaces")
    ended = subprocess.run(
        ["unshare", "-m", "bash", "-c", SCRIPT, sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode in (1, 77) and "Operation not permitted" in ended.stderr:
        pytest.skip(f"this machine makes none: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
