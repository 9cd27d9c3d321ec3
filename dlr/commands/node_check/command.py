"""`dlr node-check`: its options, and which of the two it is."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from crds.nodecheck import Accelerator
from dlr.commands import interrupts
from dlr.commands.errors import CommandError, CouldNotTell, Interrupted
from dlr.commands.lazy import HELP_NAMES
from dlr.commands.node_check import remote
from dlr.commands.node_check.local import check_this_machine
from dlr.commands.node_check.record import show_record
from dlr.commands.node_check.request import Target, Wishes, node_check
from dlr.commands.options import (
    Context,
    Kubeconfig,
    Namespace,
    Output,
    complete_job_name,
    complete_node_names,
    none_empty,
    number,
    object_name,
)
from dlr.commands.output import Format
from dlr.job.check_outcome import EXIT_CODES
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError

WHAT = "What to check (one of these)"
HOW = "How"


class Checks(TyperGroup):
    """`dlr node-check` and its commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Resolve a command as TyperGroup does; another word behind `--nodes` is meant as a node.

        Raises:
            CouldNotTell: there is such a word.
        """
        nodes = ctx.params.get("nodes")
        if nodes and args[0] not in self.commands:
            wanted = ",".join([*nodes, *args])
            raise CouldNotTell(f"--nodes takes names with commas between, and no spaces: --nodes {wanted}")
        return super().resolve_command(ctx, args)


checks = typer.Typer(
    cls=Checks, add_completion=False, context_settings=HELP_NAMES, invoke_without_command=True
)


@checks.callback()
def command(
    invocation: typer.Context,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--nodes",
            metavar="A,B",
            help="These nodes.",
            autocompletion=complete_node_names,
            rich_help_panel=WHAT,
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", "-l", metavar="K=V,…", help="Nodes with these labels.", rich_help_panel=WHAT
        ),
    ] = None,
    every_node: Annotated[bool, typer.Option("--all", help="Every node.", rich_help_panel=WHAT)] = False,
    job: Annotated[
        str | None,
        typer.Option(
            callback=object_name,
            help="The nodes of this job, in its own Pods; its training stops meanwhile.",
            autocompletion=complete_job_name,
            rich_help_panel=WHAT,
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="This machine, without any cluster.", rich_help_panel=WHAT)
    ] = False,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="RESOURCE",
            help=f"{Accelerator.NVIDIA_GPU}: every node must have one; {Accelerator.NONE}: no GPU is used. "
            "Default: the GPUs of the nodes that have any.",
            rich_help_panel=HOW,
        ),
    ] = None,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help=f"The same as --accelerator {Accelerator.NVIDIA_GPU}.", rich_help_panel=HOW
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Stay and show what is found.", rich_help_panel=HOW)
    ] = True,
    cordon: Annotated[
        bool, typer.Option("--cordon/--no-cordon", help="Cordon faulty nodes.", rich_help_panel=HOW)
    ] = True,
    timeout_seconds: Annotated[
        int | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            help="A step of the check goes on without nodes that take longer. Default: 300.",
            rich_help_panel=HOW,
        ),
    ] = None,
    straggler_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="TIMES",
            callback=number,
            help="A node so many times slower than the median, each time, is slow. Default: 1.5.",
            rich_help_panel=HOW,
        ),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            callback=none_empty,
            help="A node label that names a rack or switch, to see faults that lie together there; "
            "several, the smallest first.",
            rich_help_panel=HOW,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            callback=object_name, help="The NodeCheck's name; default: a new one.", rich_help_panel=HOW
        ),
    ] = None,
    ttl_seconds: Annotated[
        int | None,
        typer.Option(
            "--ttl",
            metavar="SECONDS",
            min=1,
            help="The NodeCheck is deleted so long after its end, an hour at least. Default: it stays.",
            rich_help_panel=HOW,
        ),
    ] = None,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Check nodes: their devices, and their network in pairs.

    Exit code: 0 all are healthy; 1 a node or link is faulty or slow; 2 could not tell.
    """
    interrupts.raise_from_now_on()
    if invocation.invoked_subcommand is not None:
        return
    target = Target(tuple(nodes or ()), selector, every_node, job, local)
    target.require_one()
    wishes = Wishes(
        _accelerator(accelerator, gpu),
        cordon,
        timeout_seconds,
        straggler_ratio,
        tuple(topology or ()),
        name,
        ttl_seconds,
    )
    if local:
        _require_local(wishes, wait)
        raise typer.Exit(EXIT_CODES[check_this_machine(wishes.accelerator, output)])
    try:
        api = Api(connect(kubeconfig, context, namespace))
        created = remote.create(api, node_check(target, wishes))
        if not wait:
            remote.announce(created, output)
            return
        found = remote.wait(api, created, output)
    except (CouldNotTell, Interrupted):
        raise
    except (ApiError, CommandError) as error:
        # A cluster that cannot be asked speaks against none of its nodes.
        raise CouldNotTell(str(error)) from error
    raise typer.Exit(EXIT_CODES[found])


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


def _accelerator(named: str | None, gpu: bool) -> str | None:
    if gpu and named not in (None, Accelerator.NVIDIA_GPU):
        raise CouldNotTell(f"--gpu and --accelerator {named} contradict each other; drop one of them.")
    return Accelerator.NVIDIA_GPU.value if gpu else named


def _require_local(wishes: Wishes, wait: bool) -> None:
    """An option that would do nothing is a misunderstanding."""
    if not wait or wishes != Wishes(accelerator=wishes.accelerator):
        raise CouldNotTell("Of the options that say how, --local takes --gpu and --accelerator alone.")
