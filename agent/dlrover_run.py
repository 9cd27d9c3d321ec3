"""`dlrover-run` in a training Pod: `dlr run`, which also accepts DLRover's flags.

For flags that are fields of the job, the log names the field once. docs/from-dlrover.md has the whole table.
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
"""torch's flag for DLRover's affinity, to the cores of the NUMA node of the process's GPU."""
NO_NUMA_BINDING = f"--{NUMA_AFFINITY}: it takes torch 2.9 or newer, NVIDIA's GPUs and the program numactl"
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def main(argv: Sequence[str], sdk: Sequence[str] = (), clients: Sequence[str] = ()) -> int:
    """Run the command, and return the exit code of `agent.launch.main`.

    Args:
        argv: flags of torchrun and of DLRover, the script, and the script's own arguments.
        sdk: see `agent.launch.main`.
        clients: folders with our replacements of DLRover's modules. They come first in PYTHONPATH: DLRover
            itself may be installed, and its client waits for a missing master.
    """
    command, not_obeyed = translated(argv, can_bind_to_numa_nodes)
    python_path = [*clients, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(python_path)
    first = 0 if getattr(sys.flags, "safe_path", False) else 1  # else 0 is the working directory's entry
    sys.path[first:first] = clients
    for advice in not_obeyed:
        print(f"{LAUNCHER}: not obeyed: {advice}", file=sys.stderr)
    return launch(command, sdk)


def translated(argv: Sequence[str], can_bind: Callable[[], bool]) -> tuple[list[str], list[str]]:
    """Return the arguments of `dlr run`, and advice for each flag that is not obeyed.

    The script and its arguments are unchanged. `--standalone` is ignored in a job's Pod, as by DLRover.

    Args:
        argv: flags of torchrun and of DLRover, the script, and the script's own arguments.
        can_bind: returns whether torch can bind processes to NUMA nodes here; called only if requested.
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
    """Return whether torch's `--numa-binding` works here; it would raise without a GPU or numactl."""
    torch = importlib.util.find_spec("torch")  # an import would take seconds
    if torch is None or torch.origin is None or not NVIDIA_DEVICE.exists() or not shutil.which("numactl"):
        return False
    return b"--numa-binding" in (Path(torch.origin).parent / "distributed" / "run.py").read_bytes()


def _asks_for_affinity(found: Sequence[Option]) -> bool:
    names = {option.name for option in found}
    return NUMA_AFFINITY in names and "numa-binding" not in names


def _is_torchruns(option: Option) -> bool:
    return option.name not in FLAGS and option.name != "standalone"
