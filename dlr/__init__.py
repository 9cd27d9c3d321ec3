"""dlr: elastic, self-healing PyTorch training on Kubernetes.

The API of training scripts, which imports only the standard library; the commands are in `dlr.cli`.
"""

from __future__ import annotations

from dlr.progress import busy, checkpoint_saved, report
from dlr.result import report_result

__all__ = ["busy", "checkpoint_saved", "report", "report_result"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from controller.errors import Error as Error
    from dlr.client import ApiError as ApiError
    from dlr.client import Client as Client
    from dlr.client import InImage as InImage
    from dlr.client import Job as Job
    from dlr.client import JobFailed as JobFailed

_OF_CLIENT = ("ApiError", "Client", "InImage", "Job", "JobFailed")


def __getattr__(name: str) -> Any:
    """Import `dlr.Client` and the like on demand, which need more packages than training scripts."""
    if name == "Error":
        from controller.errors import Error

        return Error
    if name not in _OF_CLIENT:
        raise AttributeError(f"module 'dlr' has no attribute {name!r}")
    try:
        from dlr import client
    except ModuleNotFoundError as error:
        from crds.release import DISTRIBUTION

        raise AttributeError(
            f"dlr.{name} submits jobs, which needs the package {error.name}; it is not in training Pods, "
            f"and elsewhere `pip install '{DISTRIBUTION}[cli]'` brings it"
        ) from error
    return getattr(client, name)
