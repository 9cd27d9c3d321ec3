"""The entry point `torchrun.handlers`, by which `torchrun --rdzv-backend=dlr` finds dlr's rendezvous.

torch loads and calls it on every `import torch.distributed.elastic.rendezvous`, in every process of an
environment with dlr. So it imports nothing before a rendezvous is created.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

EXIT_USAGE = 2


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function that creates dlr's handler; torch calls it by this name."""
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from agent.report import launch_mark

    launch_mark.write(os.environ, "torchrun")
    _replace_injected_torchrun()
    from agent.environment import Environment, InvalidEnvironmentError
    from agent.rendezvous.handler import create_handler

    try:
        return create_handler(params, Environment.take(os.environ))
    except Exception as error:
        if not (isinstance(error, InvalidEnvironmentError) and _is_torchrun()):
            launch_mark.explain(os.environ, error)
            raise
        why = f"torchrun --rdzv-backend=dlr: {error}"
        print(why, file=sys.stderr)
        launch_mark.explain(os.environ, why)
        raise SystemExit(EXIT_USAGE) from None


def _is_torchrun() -> bool:
    """Whether torchrun is the main program, and not one that uses torch's launcher as a library."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).name == "torchrun" or getattr(spec, "name", "") == "torch.distributed.run"


def _replace_injected_torchrun() -> None:
    """If dlr is injected, replace the image's own torchrun by `dlr run` with the same arguments.

    A command finds the image's torchrun instead of dlr's launcher if it sets PATH itself, as the activation
    of a virtual environment does, or uses `python -m torch.distributed.run`. No process was started yet.
    """
    archive = Path(__file__).parents[1]
    if archive.is_file() and _is_torchrun() and "DLR_JOB_NAME" in os.environ:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(archive), "run", *sys.argv[1:]])
