"""`dlr job suspend` and `dlr job resume`: take a job's Pods away, and give them back."""

from __future__ import annotations

from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.job.lookup import get_unfinished_job
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.connection import connect


def suspend(
    name: JobName, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None
) -> None:
    """Stop a job's training, with the time to save, and delete its Pods; its state stays."""
    api = Api(connect(kubeconfig, context, namespace))
    print(_set_suspend(api, name, True, "suspended: its Pods are being deleted", "suspended already"))


def resume(
    name: JobName, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None
) -> None:
    """Let a suspended job train again."""
    api = Api(connect(kubeconfig, context, namespace))
    print(_set_suspend(api, name, False, "resumed: its Pods are being made", "not suspended"))


def _set_suspend(api: Api, name: str, value: bool, done: str, already: str) -> str:
    job = get_unfinished_job(api, name)
    said = f"elasticjob {api.namespace}/{name}"
    if bool(job["spec"].get("suspend")) is value:
        return f"{said} is {already}"
    api.patch(ELASTICJOBS, name, patch={"spec": {"suspend": value}})
    return f"{said} {done}"
