"""`dlr job submit`: create the ElasticJobs of a file; errors name the line."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import typer

from dlr.commands.creation import create
from dlr.commands.job.file import STDIN, JobFile, read_jobs
from dlr.commands.options import ClusterOptions, none_empty, with_options
from dlr.convert.dlrover import OF_REPLICAS, OF_SPEC
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.errors import ApiError, StatusCause, UsageError

STRICT_DECODING = re.compile(r'(unknown|duplicate) field "([^"]+)"')


@with_options("cluster", ClusterOptions)
def submit(
    cluster: ClusterOptions,
    files: Annotated[
        list[str],
        typer.Option(
            "--file",
            "-f",
            callback=none_empty,
            help=f"A YAML file with ElasticJobs; {STDIN} is standard input.",
        ),
    ],
) -> None:
    """Create the ElasticJobs of a file."""
    found = [job for file in files for job in read_jobs(file)]
    for job in found:
        _refuse_two_namespaces(job, cluster.namespace)
    of_cluster = cluster.api()
    for job in found:
        api = of_cluster.within(job.namespace)
        create(api, ELASTICJOBS, job.body, partial(_refusal, api, job))
        print(
            f"elasticjob {api.namespace}/{job.name} created; "
            f"follow it with: dlr job status {job.name} -n {api.namespace} --watch"
        )


def _refuse_two_namespaces(job: JobFile, namespace: str | None) -> None:
    if job.namespace and namespace and job.namespace != namespace:
        raise UsageError(
            f"{job.where('metadata.namespace')}: the job says namespace {job.namespace!r} and "
            f"--namespace says {namespace!r}; drop one of them."
        )


def _refusal(api: Api, job: JobFile, failure: ApiError) -> str:
    if failure.reason == "AlreadyExists":
        return (
            f"{job.where()}: there is an ElasticJob {job.name!r} in namespace {api.namespace!r} already; "
            "delete it first (dlr job delete), or change it with kubectl apply."
        )
    causes = failure.causes or tuple(
        StatusCause(path, f"{what} field") for what, path in STRICT_DECODING.findall(str(failure))
    )
    if not causes:
        return f"{job.where()}: {failure}"
    lines = [f"{job.where(cause.field)}: {cause}" for cause in causes]
    if any(cause.field.rpartition(".")[2] in {**OF_SPEC, **OF_REPLICAS} for cause in causes):
        lines.append(
            "Fields of DLRover's own ElasticJobs are carried over, or explained, by: dlr convert -f FILE"
        )
    return "\n     ".join(lines)
