"""`dlr run --standalone`: the agent on one machine, without a cluster.

It is the same agent. `agent.standalone.cluster` replaces the API server and the controller, in the agent's
own process; this module sets the agent's identity. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import socket
import uuid
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from agent.flags import STANDALONE, Flags, is_set
from crds import names

NAME = "standalone"
"""Name of the job, and of its namespace."""
MAX_RESTARTS = 3
"""Default of --max-restarts: the `restartCount` of an ElasticJob's workers."""
ADDRESS = "127.0.0.1"

_QUANTITY = re.compile(r"([0-9]+)([KMGT]i?)?")
_UNITS = {"": 1, **{unit: 1000**power for power, unit in enumerate("KMGT", 1)}}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)}


def prepare(flags: Flags, environ: MutableMapping[str, str]) -> None:
    """Set the environment of the worker, as the controller does in a Pod."""
    environ.setdefault(names.ENV_JOB_NAME, NAME)
    environ.setdefault(names.ENV_NAMESPACE, NAME)
    environ.setdefault(names.ENV_WORKER_NAME, f"{NAME}-{names.WORKER}-0")
    environ.setdefault(names.ENV_WORKER_INDEX, "0")
    environ.setdefault(names.ENV_INCARNATION, "1")
    environ.setdefault(names.ENV_POD_UID, str(uuid.uuid4()))
    environ.setdefault(names.ENV_POD_IP, ADDRESS)
    environ.setdefault(names.ENV_NODE_NAME, socket.gethostname())
    environ.setdefault(names.ENV_JOB_KEY, secrets.token_hex(32))
    if _QUANTITY.fullmatch(flags.memory_checkpoint):
        environ[names.ENV_MEMORY_BYTES] = str(bytes_of(flags.memory_checkpoint))


def check(nnodes: str, environ: Mapping[str, str]) -> None:
    """Check that `--standalone` is allowed here.

    Raises:
        ValueError: this is a job's worker, or more than one machine is requested.
    """
    variable = environ.get(STANDALONE)
    asked = f"{STANDALONE}={variable}" if is_set(variable) else "--standalone"
    job = environ.get(names.ENV_JOB_NAME, NAME)
    if job != NAME:
        raise ValueError(f"{asked} is for a machine alone, and this is a worker of {job}: drop it")
    if nnodes.partition(":")[0] != "1":  # an elastic world, such as 1:4, begins with one machine
        raise ValueError(f"{asked} is for one machine, and --nnodes is {nnodes}: drop one of them")


def check_script(script: str, *, is_program: bool) -> None:
    """Check that what is to be started is there, since no restart would bring it.

    Args:
        script: a path, or `-` for stdin, as Python takes them.
        is_program: whether it is started without Python.

    Raises:
        ValueError: it is not there, or may not be run.
    """
    if is_program:
        if shutil.which(script) is None:
            raise ValueError(f"no program {script} can be run in {Path.cwd()} or from PATH: correct its path")
    elif script != "-" and not (script and Path(script).exists()):
        raise ValueError(
            f"there is no script {Path(script).absolute()}: correct its path, or use -m for a module"
        )


def bytes_of(text: str) -> int:
    """Parse an amount of memory, such as 512Mi.

    Raises:
        argparse.ArgumentTypeError: it is no amount of memory.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory, such as 512Mi or 4Gi")
    unit: int = _UNITS[found[2] or ""]
    return int(found[1]) * unit
