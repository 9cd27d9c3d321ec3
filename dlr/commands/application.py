"""The typer application: every command under its name."""

from __future__ import annotations

from typing import Annotated

import typer

from dlr.commands.bundle import bundle
from dlr.commands.cluster import down, kubeconfig, up
from dlr.commands.controller import controller
from dlr.commands.doctor.command import doctor
from dlr.commands.install.command import install, uninstall
from dlr.commands.job.commands import jobs
from dlr.commands.manifests import manifests
from dlr.commands.node_check.command import command as node_check

application = typer.Typer(
    help="Elastic, self-healing PyTorch training on Kubernetes, without a per-job master.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.command()(up)
application.command()(down)
application.command()(kubeconfig)
application.add_typer(jobs, name="job")
application.command("node-check")(node_check)
application.command()(install)
application.command()(uninstall)
application.command()(doctor)
application.command()(controller)
application.command()(manifests)
application.command()(bundle)


@application.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[TORCHRUN FLAGS] SCRIPT [ARGS]...", show_default=False)
    ] = None,
) -> None:
    """Train, in a Pod: torchrun's flags, a script and its arguments."""
    from agent.launch import main

    raise typer.Exit(main(arguments or []))
