"""The command `dlr node-check`, with its options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from crds import names
from crds.nodecheck import Accelerator
from dlr.commands import interrupts
from dlr.commands.errors import CommandError, CouldNotTell, Interrupted
from dlr.commands.lazy import HELP_NAMES
from dlr.commands.node_check import remote
from dlr.commands.node_check.local import check_this_machine
from dlr.commands.node_check.record import show_record
from dlr.commands.options import (
    ClusterOptions,
    Context,
    Kubeconfig,
    Output,
    complete_job_name,
    complete_node_names,
    none_empty,
    object_name,
    with_options,
)
from dlr.commands.output import Format
from dlr.job.check_outcome import EXIT_CODES
from dlr.kube.api import JSON, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError

NAME_PREFIX = "node-check-"
ONE_OF_THESE = "Say what to check by exactly one of --nodes, --selector, --all, --job and --local."
_what = partial(typer.Option, rich_help_panel="What to check (one of these)")
_how = partial(typer.Option, rich_help_panel="How")


checks = typer.Typer(add_completion=False, context_settings=HELP_NAMES, invoke_without_command=True)


Nodes = Annotated[
    list[str] | None,
    _what("--nodes", metavar="A,B", help="These nodes.", autocompletion=complete_node_names),
]
Selector = Annotated[str | None, _what("--selector", "-l", metavar="K=V,…", help="Nodes with these labels.")]
EveryNode = Annotated[bool, _what("--all", help="Every node.")]
Job = Annotated[
    str | None,
    _what(
        callback=object_name,
        help="The nodes of this job, in its own Pods; its training stops meanwhile.",
        autocompletion=complete_job_name,
    ),
]
Local = Annotated[bool, _what("--local", help="This machine, without any cluster.")]
Gpu = Annotated[
    bool, _how("--gpu", help="Every node must have a GPU. Default: the GPUs of the nodes that have any.")
]
Wait = Annotated[bool, _how("--wait/--no-wait", help="Stay and show what is found.")]
Cordon = Annotated[bool, _how("--cordon/--no-cordon", help="Cordon faulty nodes.")]
TimeoutSeconds = Annotated[
    int | None,
    _how(
        "--timeout",
        metavar="SECONDS",
        min=1,
        help="A step of the check goes on without nodes that take longer. Default: 300.",
    ),
]
StragglerRatio = Annotated[
    float | None,
    _how(
        metavar="TIMES",
        help="A node so many times slower than the median, each time, is slow. Default: 1.5.",
    ),
]
Topology = Annotated[
    list[str] | None,
    _how(
        metavar="LABEL",
        callback=none_empty,
        help="A node label that names a rack or switch, to see faults that lie together there; "
        "several, the smallest first.",
    ),
]
TtlSeconds = Annotated[
    int | None,
    _how(
        "--ttl",
        metavar="SECONDS",
        min=1,
        help="The NodeCheck is deleted so long after its end, an hour at least. Default: it stays.",
    ),
]


@checks.callback()
@with_options("cluster", ClusterOptions)
def command(
    cluster: ClusterOptions,
    invocation: typer.Context,
    nodes: Nodes = None,
    selector: Selector = None,
    every_node: EveryNode = False,
    job: Job = None,
    local: Local = False,
    gpu: Gpu = False,
    wait: Wait = True,
    cordon: Cordon = True,
    timeout_seconds: TimeoutSeconds = None,
    straggler_ratio: StragglerRatio = None,
    topology: Topology = None,
    ttl_seconds: TtlSeconds = None,
    output: Output = Format.TABLE,
) -> None:
    """Check nodes: devices, and network in pairs.

    Exit code: 0 all are healthy; 1 a node or link is faulty or slow; 2 could not tell.
    """
    interrupts.raise_from_now_on()
    if invocation.invoked_subcommand is not None:
        return
    if sum([bool(nodes), selector is not None, every_node, job is not None, local]) != 1:
        raise CouldNotTell(ONE_OF_THESE)
    how = _given(
        accelerator=Accelerator.NVIDIA_GPU.value if gpu else None,
        cordon=None if cordon else False,
        timeoutSeconds=timeout_seconds,
        stragglerRatio=straggler_ratio,
        topologyKeys=topology or None,
        ttlSecondsAfterFinished=ttl_seconds,
    )
    if local:
        if not wait or how.keys() - {"accelerator"}:
            raise CouldNotTell("Of the options that say how, --local takes --gpu alone.")
        raise typer.Exit(EXIT_CODES[check_this_machine(output, gpu=gpu)])
    check = {
        "apiVersion": names.API_VERSION,
        "kind": "NodeCheck",
        "metadata": {"generateName": NAME_PREFIX},
        "spec": subject(nodes or (), selector, job) | how,
    }
    try:
        _make(cluster.api(), check, output, wait=wait)
    except (CouldNotTell, Interrupted):
        raise
    except (ApiError, CommandError) as error:
        # An error of the cluster is no evidence against its nodes.
        raise CouldNotTell(str(error)) from error


def _make(api: Api, check: JSON, output: Format, *, wait: bool) -> None:
    """Create a NodeCheck, and, if `wait`, exit by its findings."""
    created = remote.create(api, check)
    if not wait:
        remote.announce(created, output)
        return
    raise typer.Exit(EXIT_CODES[remote.wait(api, created, output)])


@checks.command("history")
def history(
    node: Annotated[
        str,
        typer.Argument(callback=object_name, help="The node's name.", autocompletion=complete_node_names),
    ],
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show what the last checks of a node gave: its record, which is kept on the Node."""
    show_record(Api(connect(kubeconfig, context, None)), node, output)


def _given(**fields: Any) -> JSON:
    return {field: value for field, value in fields.items() if value is not None}


def subject(nodes: Sequence[str], selector: str | None, job: str | None) -> JSON:
    """Return the fields of the spec that select the nodes; without any argument, all nodes.

    Args:
        nodes: node names, or lists of them separated by commas.

    Raises:
        CouldNotTell: the selector or the list of nodes is invalid.
    """
    if job is not None:
        return {"jobName": job}
    if selector is not None:
        return {"nodeSelector": _labels(selector)}
    found = [name.strip() for part in nodes for name in part.split(",")]
    if not all(found):
        raise CouldNotTell(f"--nodes {','.join(nodes)!r} has a node without a name in it.")
    return {"nodes": list(dict.fromkeys(found))} if found else {"nodeSelector": {}}


def _labels(selector: str) -> dict[str, str]:
    """Parse `a=b,c=d`; like a Pod's, a NodeCheck's nodeSelector is a map."""
    labels: dict[str, str] = {}
    for part in selector.split(","):
        key, equals, value = (word.strip() for word in part.replace("==", "=", 1).partition("="))
        if not equals or not key or any(sign in key + value for sign in "=!() ") or key in labels:
            raise CouldNotTell(
                f"--selector {selector!r} is not understood: it takes label=value, and several with commas "
                "between, all of which a node must have."
            )
        labels[key] = value
    return labels
