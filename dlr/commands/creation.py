"""Objects that commands create."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dlr.commands.errors import CommandError
from dlr.job.lookup import require_namespace
from dlr.kube.api import JSON, Api, Resource
from dlr.kube.errors import ApiError


def create(api: Api, kind: Resource, body: JSON, refusal: Callable[[ApiError], str]) -> JSON:
    """Return an object as the server has made it, and print the server's warnings.

    Raises:
        CommandError: the server refuses it, in the words of `refusal`, or there is no such namespace.
    """
    try:
        created, warnings = api.create(kind, body)
    except ApiError as failure:
        if failure.reason == "NotFound" and failure.names_object:
            require_namespace(api)
        raise CommandError(refusal(failure)) from failure
    for warning in warnings:
        print(f"dlr: warning: {warning}", file=sys.stderr)
    return created
