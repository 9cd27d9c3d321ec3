"""Makes a launched job in a cluster, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dlr.client.manifest import owned_by
from dlr.job.lookup import require_namespace
from dlr.kube.api import (
    CONFIGMAPS,
    ELASTICJOBS,
    Api,
    ApiFailure,
)
from dlr.kube.errors import CommandError

JSON = dict[str, Any]


def submit(api: Api, objects: Sequence[JSON]) -> tuple[JSON, list[str]]:
    """Make what `dlr.client.manifest.objects` has built; the job, and the server's warnings.

    Raises:
        CommandError: the API server refuses it; nothing is left behind.
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
        _take_back(api, made)
        if isinstance(error, ApiFailure):
            raise CommandError(_refusal(api, name, error)) from error
        raise
    try:
        for each_name in made:
            api.patch(CONFIGMAPS, each_name, patch=owned_by(created))
    except BaseException:
        with suppress(CommandError):
            api.delete(ELASTICJOBS, name)
        _take_back(api, made)
        raise
    return created, warnings


def _take_back(api: Api, config_maps: Sequence[str]) -> None:
    for name in config_maps:
        with suppress(CommandError):
            api.delete(CONFIGMAPS, name)


def _refusal(api: Api, name: str, failure: ApiFailure) -> str:
    if failure.reason == "NotFound" and failure.names_object:
        require_namespace(api)
    if failure.reason == "AlreadyExists":
        return (
            f"{str(failure).rstrip('.')} in namespace {api.namespace!r}: delete it, or choose another name."
        )
    reasons = "; ".join(str(cause) for cause in failure.causes) or str(failure).rstrip(".")
    return f"The job {name!r} is refused: {reasons}."
