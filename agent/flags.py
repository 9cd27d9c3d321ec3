"""Flags that are needed before torch is imported, whose own parser reads all flags later."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from crds.dlrover import BACKENDS, OUR_BACKEND, options
from crds.names import ENV_JOB_NAME
from crds.progress_record import ENV_PROGRESS_FILE
from crds.shard_set import ENV_SHARDS_SOCKET

STANDALONE = "PET_STANDALONE"
"""torch's variable for `--standalone`."""
BACKEND = "PET_RDZV_BACKEND"
OF_THE_JOB = ("PET_NNODES", "PET_NODE_RANK", BACKEND, "PET_RDZV_ID")
"""torchrun's flags that the controller sets as variables (`reconcilers/worker/job_pod.py`)."""


@dataclass(frozen=True)
class Flags:
    """Flags in front of the script, and torchrun's variables `PET_*`; a flag takes precedence.

    https://docs.pytorch.org/docs/stable/elastic/run.html
    """

    standalone: bool
    backend: str
    """Value of `--rdzv-backend`."""
    warm_start: bool
    processes: str
    """Value of `--nproc-per-node`: a number, or a kind of device that torch counts (`gpu`, `auto`)."""
    preloads: tuple[str, ...]
    """Modules of `--preload`."""
    memory_checkpoint: str
    """Size of `--memory-checkpoint`; "" without the flag."""

    @classmethod
    def read(cls, words: Sequence[str], environ: Mapping[str, str]) -> Flags:
        """Read a command of `torchrun` or `dlr run`.

        Args:
            words: the flags, the script, and the script's own arguments.
        """
        found: dict[str, list[str]] = {}
        for option in options(words):
            found.setdefault(option.name, []).append(option.value or "")

        def last(name: str, default: str) -> str:
            return found.get(name, [default])[-1]

        return cls(
            standalone="standalone" in found or is_set(environ.get(STANDALONE)),
            backend=last("rdzv-backend", environ.get(BACKEND) or OUR_BACKEND),
            warm_start="no-warm-start" not in found,
            processes=last("nproc-per-node", environ.get("PET_NPROC_PER_NODE", "1")),
            preloads=tuple(found.get("preload", ())),
            memory_checkpoint=last("memory-checkpoint", ""),
        )

    def are_for_another_rendezvous(self, environ: Mapping[str, str]) -> bool:
        """Whether a `torchrun` uses another rendezvous than dlr's, or is not in a Pod of an ElasticJob.

        A torchrun below a training process, for example for an evaluation, does not take part in the job's.
        """
        is_none_of_ours = ENV_JOB_NAME not in environ or is_below_an_agent(environ)
        return self.standalone or self.backend not in BACKENDS or is_none_of_ours


def is_below_an_agent(environ: Mapping[str, str]) -> bool:
    """Whether the Pod's agent has started this program."""
    return ENV_PROGRESS_FILE in environ or ENV_SHARDS_SOCKET in environ


def is_set(text: str | None) -> bool:
    """Whether a switch is set, as in torch (`torch.distributed.argparse_util.check_env`)."""
    return text not in (None, "", "0")


def drop_our_rendezvous(environ: MutableMapping[str, str]) -> None:
    """Drop the controller's variables for stock torchrun, which no command of a Pod needs.

    A torchrun below it, whose world is not the job's, would wait for the job's other workers. If
    `PET_RDZV_BACKEND` is a rendezvous of the user, the others are the user's too, and stay.
    """
    if environ.get(BACKEND) in BACKENDS:
        for name in OF_THE_JOB:
            environ.pop(name, None)
