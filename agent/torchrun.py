"""The entry point `torchrun.handlers`: makes `torchrun --rdzv-backend=dlr` find our rendezvous.

torch loads it on every `import torch.distributed.elastic.rendezvous`, in every process where dlr is
installed, and calls it to get the creator. So it imports nothing until a rendezvous is really created.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from agent.rendezvous import create_handler

    return create_handler(params)
