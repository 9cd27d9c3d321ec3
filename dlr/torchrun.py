"""The entry point `torchrun.handlers`: makes `torchrun --rdzv-backend=dlr` find our rendezvous.

torch loads it on every `import torch.distributed.elastic.rendezvous`, in every process where dlr is
installed, and calls it to get the creator. So it imports nothing until a rendezvous is really created.
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
    """The function that creates our handler, under the name that torch calls."""
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
    """Replace the image's own torchrun, where dlr is injected, by `dlr run` with the same arguments.

    A command finds it and not our launcher when it sets PATH itself, as activating a virtual environment
    does, or starts it as `python -m torch.distributed.run`. No process has been started by then.
    """
    archive = Path(__file__).parents[1]
    if archive.is_file() and _is_torchrun() and "DLR_JOB_NAME" in os.environ:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(archive), "run", *sys.argv[1:]])
