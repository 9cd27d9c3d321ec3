"""Which `torchrun` commands of an injected Pod are not for us: the image's own torchrun runs those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.rendezvous.handler import BACKEND
from agent.standalone import is_standalone
from crds.dlrover import RENDEZVOUS_BACKEND, options
from crds.names import ENV_JOB_NAME

BACKENDS = (BACKEND, RENDEZVOUS_BACKEND)
"""The rendezvous that are the job's: DLRover's too, whose master there is none of."""

OF_THE_JOB = ("PET_NNODES", "PET_NODE_RANK", "PET_RDZV_BACKEND", "PET_RDZV_ID")
"""torchrun's flags that the controller sets as variables (`reconcilers/worker/assignment.py`)."""


def is_for_another_rendezvous(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether torchrun's arguments, or its variables `PET_*`, ask for a rendezvous that is not dlr's.

    So do `--standalone`, another `--rdzv-backend`, and a Pod that is none of an ElasticJob.
    https://docs.pytorch.org/docs/stable/elastic/run.html

    Args:
        arguments: torchrun's flags, the script, and the script's own arguments.
        environ: the environment; a flag outweighs its variable.
    """
    named = [flag.value for flag in options(arguments) if flag.name == "rdzv-backend"]
    backend = named[-1] if named else environ.get("PET_RDZV_BACKEND") or BACKEND
    elsewhere = backend not in BACKENDS or ENV_JOB_NAME not in environ
    return elsewhere or is_standalone(arguments, environ)


def without_our_rendezvous(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the image's own torchrun, whose world is not the job's.

    What the controller has set for stock torchrun would have it wait for the job's other workers. With a
    rendezvous of the user's in `PET_RDZV_BACKEND`, the others are the user's too.
    """
    if environ.get("PET_RDZV_BACKEND") not in BACKENDS:
        return dict(environ)
    return {name: value for name, value in environ.items() if name not in OF_THE_JOB}
