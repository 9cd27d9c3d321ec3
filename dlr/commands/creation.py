"""Creates objects for commands."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dlr.commands.errors import CommandError
from dlr.job.lookup import require_namespace
from dlr.kube.api import JSON, Api, Resource
from dlr.kube.errors import ApiError


def create(api: Api, kind: Resource, body: JSON, refusal: Callable[[ApiError], str]) -> JSON:
    """Create an object, print the server's warnings, and return the object as created.

    Args:
        refusal: returns the message for an error of the server.

    Raises:
        CommandError: the server refuses the object, or there is no such namespace.
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
