"""`dlr.Client`: submits jobs to a cluster, and finds existing ones."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from crds import names
from dlr.client.image import default_image
from dlr.client.job import Job
from dlr.client.manifest import JobLaunch, new_name, objects, owned_by
from dlr.client.program import InImage, program_of
from dlr.job.groups import tree
from dlr.job.lookup import get_job, require_namespace
from dlr.kube.api import CONFIGMAPS, ELASTICJOBS, JSON, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError, NotFound, Unavailable, UsageError

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_JOB_NAME = names.LONGEST_NAME - len(names.WORKER)


class Client:
    """A cluster, as the `dlr` command finds it.

    Args:
        namespace: a namespace instead of the context's.
        context: a context of the kubeconfig instead of its current one.
        kubeconfig: a file instead of $KUBECONFIG, the Pod's own account, ~/.kube/config, or the embedded
            cluster's.
    """

    def __init__(
        self, namespace: str | None = None, *, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        self._api = Api(connect(kubeconfig, context, namespace))

    @property
    def namespace(self) -> str:
        return self._api.namespace

    def train(
        self,
        program: Callable[..., Any] | str | os.PathLike[str] | InImage,
        arguments: Mapping[str, Any] | Sequence[str] = (),
        *,
        workers: int | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        processes: int | None = None,
        image: str | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        like: str | None = None,
    ) -> Job:
        """Run a function or a script in Pods, and return the job without waiting for it.

        A function is shipped as source, so it must be self-contained: it imports what it needs, and its
        arguments are JSON. It runs in every process; rank 0's return value is the job's `result()`.

        Args:
            program: a function, a script of this machine, or `dlr.InImage(path)`.
            arguments: the arguments of a function by name, or a script's command-line arguments.
            workers: the number of Pods; default 1.
            min_workers: the fewest Pods to train with; default: `workers`.
            max_workers: the most Pods to which the job can be scaled.
            processes: the processes of each Pod; default: one for each of its GPUs, or one.
            image: an image with Python and torch; the embedded cluster needs none.
            cpu: the CPUs of each Pod, such as "500m".
            memory: the memory of each Pod, such as "2Gi".
            gpus: the GPUs of each Pod.
            env: additional environment variables.
            name: the job's name; default: a new one.
            like: a job of this namespace, finished or not, whose spec supplies everything else.

        Raises:
            ValueError: an argument is invalid, or the function cannot be shipped; nothing was created.
            ApiError: the cluster cannot be reached, or refuses; nothing is left behind.
        """
        if env is not None and not isinstance(env, Mapping):
            raise UsageError(f"env maps names of variables to their texts, and is not {env!r}.")
        found = program_of(program, arguments)
        requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
        launch = JobLaunch(
            program=found,
            name=new_name(found) if name is None else checked_name(name),
            workers=workers,
            min_workers=min_workers,
            max_workers=max_workers,
            processes=processes,
            image=image if image or like else default_image(self._api),
            requests=requests,
            gpus=gpus,
            env=dict(env or {}),
        )
        template = get_job(self._api, like) if like else None
        job, _ = submit(self._api, objects(launch, template))
        return Job(self._api, job)

    def job(self, name: str) -> Job:
        """Return the job of that name."""
        return Job(self._api, get_job(self._api, name))

    def jobs(self) -> list[Job]:
        """Return all jobs of the namespace, without replica groups, which `Job.groups()` returns."""
        return [Job(self._api, job) for job, is_group in tree(self._api.find(ELASTICJOBS)) if not is_group]

    def __repr__(self) -> str:
        return f"<dlr.Client {self._api.connection.server}, namespace {self.namespace}>"


def checked_name(name: str) -> str:
    """Return the name of a new job.

    Raises:
        UsageError: the name is invalid.
    """
    if len(name) > LONGEST_JOB_NAME or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a job: it needs at most {LONGEST_JOB_NAME} of a-z, 0-9 and -, "
            "with a letter first and none of - last."
        )
    return name


def submit(api: Api, objects: Sequence[JSON]) -> tuple[JSON, list[str]]:
    """Create the result of `dlr.client.manifest.objects`, all or nothing.

    Returns:
        the job, and the server's warnings.

    Raises:
        ApiError: the API server refuses it; nothing is left behind.
    """
    *config_maps, job = objects
    name = job["metadata"]["name"]
    made: list[str] = []
    try:
        for each in config_maps:
            api.create(CONFIGMAPS, each)
            made.append(each["metadata"]["name"])
        created, warnings = api.create(ELASTICJOBS, job)
    except BaseException as error:
        arrived = _arrived(api, name, made) if isinstance(error, Unavailable) else None
        if arrived is None:
            _take_back(api, made)
            if isinstance(error, ApiError):
                raise ApiError(_refusal(api, name, error)) from error
            raise
        created, warnings = arrived, []
    try:
        for each_name in made:
            api.patch(CONFIGMAPS, each_name, patch=owned_by(created))
    except BaseException:
        with suppress(ApiError):
            api.delete(ELASTICJOBS, name)
        _take_back(api, made)
        raise
    return created, warnings


def _arrived(api: Api, name: str, config_maps: Sequence[str]) -> JSON | None:
    """Return the job if the API server has created it though its answer was lost; it then names one of the
    ConfigMaps just created."""
    with suppress(ApiError):
        found = api.get(ELASTICJOBS, name)
        if any(f'"{each}"' in json.dumps(found["spec"]) for each in config_maps):
            return found
    return None


def _take_back(api: Api, config_maps: Sequence[str]) -> None:
    for name in config_maps:
        with suppress(ApiError):
            api.delete(CONFIGMAPS, name)


def _refusal(api: Api, name: str, failure: ApiError) -> str:
    if failure.reason == "NotFound" and failure.names_object:
        require_namespace(api)
    if failure.reason == "AlreadyExists":
        with suppress(NotFound):
            api.get(ELASTICJOBS, name)
            return (
                f"There is an ElasticJob {name!r} in namespace {api.namespace!r} already: delete it first "
                f"(dlr job delete {name} -n {api.namespace}), or choose another name."
            )
        return (
            f"{str(failure).rstrip('.')} in namespace {api.namespace!r}: delete it, or choose another name."
        )
    reasons = "; ".join(str(cause) for cause in failure.causes) or str(failure).rstrip(".")
    return f"The job {name!r} is refused: {reasons}."
