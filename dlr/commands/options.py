"""Options shared by the commands that talk to a cluster."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dlr.commands.output import Format
from dlr.kube.api import ELASTICJOBS, NAME_LENGTH_MAX, NAMESPACES, NODES, OBJECT_NAME, Api, Resource
from dlr.kube.connection import connect, contexts_of, find_source
from dlr.kube.errors import ApiError, UsageError

Command = Callable[..., None]


def complete_job_name(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a job in the shell; without a cluster there are no suggestions."""
    return [name for name in _names_of(context, ELASTICJOBS) if name.startswith(incomplete)]


def complete_node_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a list of node names in the shell."""
    named, comma, last = incomplete.rpartition(",")
    return [f"{named}{comma}{name}" for name in _names_of(context, NODES) if name.startswith(last)]


def complete_namespace(context: typer.Context, incomplete: str) -> list[str]:
    return [name for name in _names_of(context, NAMESPACES) if name.startswith(incomplete)]


def complete_context(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a context in the shell, from the kubeconfig."""
    try:
        known = contexts_of(find_source(context.params.get("kubeconfig")))
    except ApiError:
        return []
    return [name for name in known if name.startswith(incomplete)]


def _names_of(context: typer.Context, kind: Resource) -> list[str]:
    """Return the names of all objects of a kind; empty without a cluster."""
    given = context.params
    try:
        api = Api(connect(given.get("kubeconfig"), given.get("context"), given.get("namespace")))
        return [str(each["metadata"]["name"]) for each in api.find(kind)]
    except ApiError:
        return []


def not_empty(value: str | None) -> str | None:
    """Refuse, as a `callback`, an empty text, which comes from an unset variable of a script."""
    if value == "":
        raise typer.BadParameter("it is empty.")
    return value


def none_empty(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        not_empty(value)
    return values


def namespace_name(value: str | None) -> str | None:
    if value is not None:
        from deploy import check_namespace

        try:
            check_namespace(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return value


def object_name(value: str | None) -> str | None:
    """Validate the name of an object in the cluster, such as a job."""
    if value is not None and not (len(value) <= NAME_LENGTH_MAX and OBJECT_NAME.fullmatch(value)):
        hint = "; a namespace goes after -n" if "/" in value else ""
        raise typer.BadParameter(
            f"{value!r} is not a valid name in Kubernetes: it needs 1 to {NAME_LENGTH_MAX} "
            f"of a-z, 0-9, - and ., with a letter or digit at both ends{hint}."
        )
    return value


def new_job_name(value: str | None) -> str | None:
    """Validate the name of a new job, on which the names of its Pods are based."""
    from dlr.client.client import checked_name

    try:
        return value if value is None else checked_name(value)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def object_names(values: list[str]) -> list[str]:
    for value in values:
        object_name(value)
    return values


Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        callback=not_empty,
        help="The kubeconfig to use instead of $KUBECONFIG, the Pod's own account, ~/.kube/config, "
        "or the embedded cluster's.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        callback=not_empty,
        help="The kubeconfig's context to use.",
        autocompletion=complete_context,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        callback=namespace_name,
        help="The namespace, instead of the context's.",
        autocompletion=complete_namespace,
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="What to print.")]
JobName = Annotated[
    str, typer.Argument(callback=object_name, help="The job's name.", autocompletion=complete_job_name)
]
Group = Annotated[
    int | None, typer.Option(min=0, metavar="I", help="Only this replica group of the job, by its index.")
]


@dataclass(frozen=True)
class ClusterOptions:
    """Options that name a cluster; the kubeconfig is read by `api` only."""

    namespace: Namespace = None
    kubeconfig: Kubeconfig = None
    context: Context = None

    def api(self) -> Api:
        return Api(connect(self.kubeconfig, self.context, self.namespace))


def with_options(parameter: str, made_of: Callable[..., Any]) -> Callable[[Command], Command]:
    """Replace a parameter of a command by options.

    Args:
        made_of: builds the parameter's value; its own parameters are the options.
    """
    options = inspect.signature(made_of, eval_str=True).parameters

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**{parameter: made_of(**{name: given.pop(name) for name in options})}, **given)

        signature = inspect.signature(command, eval_str=True)
        own = [each for name, each in signature.parameters.items() if name != parameter]
        vars(called)["__signature__"] = signature.replace(parameters=[*own, *options.values()])
        return called

    return decorated


def _api(namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None) -> Api:
    return ClusterOptions(namespace, kubeconfig, context).api()


with_cluster = with_options("api", _api)
"""Decorator for a command that always talks to a cluster."""
