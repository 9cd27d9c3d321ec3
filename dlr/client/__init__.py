"""Jobs from a notebook or a script, without YAML: `dlr.Client().train(function, workers=4)`.

It runs where jobs are submitted from, and not in training Pods: `import dlr` does not import it.
"""

from dlr.client.client import Client
from dlr.client.job import Job, JobFailed, JobStatus
from dlr.client.program import InImage
from dlr.kube.errors import ApiError, Error

__all__ = ["ApiError", "Client", "Error", "InImage", "Job", "JobFailed", "JobStatus"]
