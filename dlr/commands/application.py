"""The typer application: every command under its name."""

from __future__ import annotations

import typer

from dlr.commands.cluster import down, kubeconfig, up
from dlr.commands.controller import controller
from dlr.commands.job.commands import jobs
from dlr.commands.manifests import manifests

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
application.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Train, in a Pod: torchrun's flags, a script and its arguments (see `dlr run --help`).",
)
application.command()(controller)
application.command()(manifests)
