"""`dlrover-run` in a training Pod: `dlr run`, which takes DLRover's flags too and obeys what it can of them.

What belongs to the job is not for an agent to decide: the log says once which field does it.
docs/from-dlrover.md has the whole table.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.launch import main as launch
from crds.dlrover import FLAGS, LAUNCHER, NUMA_AFFINITY, Option, ignored, options

NUMA_BINDING = "--numa-binding=node"
"""torch's own way to what DLRover calls affinity: to the cores of the node that the process's GPU is on."""
NO_NUMA_BINDING = f"--{NUMA_AFFINITY}: it takes torch 2.9 or newer, NVIDIA's GPUs and the program numactl"
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def main(argv: Sequence[str], sdk: Sequence[str] = (), clients: Sequence[str] = ()) -> int:
    """Run the command, and return the exit code of `agent.launch.main`.

    Args:
        argv: flags of torchrun's and of DLRover's, the script, and the script's own arguments.
        sdk: as `agent.launch.main` has it.
        clients: folders in which scripts find our stand-ins for DLRover's modules. They come first in
            PYTHONPATH: DLRover itself may be installed, and its client waits for a master that is not there.
    """
    command, not_obeyed = translated(argv, can_bind_to_numa_nodes)
    python_path = [*clients, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(python_path)
    first = 0 if getattr(sys.flags, "safe_path", False) else 1  # 0 is where the command was started from
    sys.path[first:first] = clients
    for advice in not_obeyed:
        print(f"{LAUNCHER}: not obeyed: {advice}", file=sys.stderr)
    return launch(command, sdk)


def translated(argv: Sequence[str], can_bind: Callable[[], bool]) -> tuple[list[str], list[str]]:
    """The arguments of `dlr run`, and what to do about each flag that is not obeyed.

    From the script on, all stays as it is. DLRover too takes no notice of `--standalone` in a Pod of a job.

    Args:
        argv: flags of torchrun's and of DLRover's, the script, and the script's own arguments.
        can_bind: whether torch can bind processes to NUMA nodes here; asked only if they are to be bound.
    """
    found = options(argv)
    front = sum(len(option.words) for option in found)
    kept = [word for option in found if _is_torchruns(option) for word in option.words]
    not_obeyed = [each.advice for each in ignored(found)]
    if _asks_for_affinity(found):
        if can_bind():
            kept.append(NUMA_BINDING)
        else:
            not_obeyed.append(NO_NUMA_BINDING)
    return [*kept, *argv[front:]], not_obeyed


def can_bind_to_numa_nodes() -> bool:
    """Whether torch's `--numa-binding` works here; it raises where there is no GPU or no numactl."""
    torch = importlib.util.find_spec("torch")  # it is not imported: that takes seconds
    if torch is None or torch.origin is None or not NVIDIA_DEVICE.exists() or not shutil.which("numactl"):
        return False
    return b"--numa-binding" in (Path(torch.origin).parent / "distributed" / "run.py").read_bytes()


def _asks_for_affinity(found: Sequence[Option]) -> bool:
    names = {option.name for option in found}
    return NUMA_AFFINITY in names and "numa-binding" not in names


def _is_torchruns(option: Option) -> bool:
    return option.name not in FLAGS and option.name != "standalone"
