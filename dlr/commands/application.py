"""The typer application: every command under its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import typer

from crds.release import VERSION
from dlr.commands.lazy import HELP_NAMES, Lazy, LazyGroup
from dlr.kube.errors import UsageError


class Commands(LazyGroup):
    lazy: ClassVar = {
        "up": Lazy(
            "dlr.commands.cluster",
            "up",
            "Start a local Kubernetes on this machine, or bring the earlier one back: no Docker, no root.",
        ),
        "down": Lazy(
            "dlr.commands.cluster",
            "down",
            "Stop the embedded cluster and every process in it; its objects stay for the next `dlr up`.",
        ),
        "kubeconfig": Lazy(
            "dlr.commands.cluster",
            "kubeconfig",
            "Print where the embedded cluster's kubeconfig is: export KUBECONFIG=$(dlr kubeconfig)",
        ),
        "job": Lazy("dlr.commands.job.commands", "jobs", "Submit, look at, change and delete training jobs."),
        "hosts": Lazy(
            "dlr.commands.hosts",
            "hosts",
            "Print a job's workers as `address:slots`, those that can be used now: Horovod's host discovery.",
        ),
        "map": Lazy(
            "dlr.commands.map.command",
            "command",
            "Run a command for each line of standard input, in Pods that come and go with the work.",
        ),
        "dashboard": Lazy(
            "dlr.commands.dashboard",
            "dashboard",
            "Show jobs on a web page of this machine alone, with your own rights; Ctrl-C ends it.",
        ),
        "node-check": Lazy(
            "dlr.commands.node_check.command",
            "checks",
            "Check nodes: their devices, and their network in pairs.",
        ),
        "simulate": Lazy(
            "dlr.commands.simulate",
            "simulate",
            "Simulate a fleet with the controller's own decisions: goodput, where time goes, and what "
            "would help.",
        ),
        "install": Lazy(
            "dlr.commands.install.command",
            "install",
            "Install dlr into a cluster, or upgrade it: CRDs, controller, rights and policies.",
        ),
        "uninstall": Lazy(
            "dlr.commands.install.command",
            "uninstall",
            "Take dlr out of a cluster; refused while jobs run. CRDs and jobs stay, unless asked for.",
        ),
        "doctor": Lazy(
            "dlr.commands.doctor.command",
            "doctor",
            "Check whether a cluster has what dlr needs, before and after installing; exit code 1 if not.",
        ),
        "controller": Lazy(
            "dlr.commands.controller",
            "controller",
            "Run the controller: the reconcilers of ElasticJobs, their workers, and the nodes' cordons.",
        ),
        "convert": Lazy(
            "dlr.commands.convert",
            "command",
            "Print manifests of other operators as ElasticJobs, and what of them cannot be carried over.",
        ),
        "manifests": Lazy(
            "dlr.commands.install.command",
            "manifests",
            "Print what `dlr install` applies: dlr manifests | kubectl apply -f -",
        ),
        "bundle": Lazy(
            "dlr.commands.bundle",
            "bundle",
            "Write the agent that is injected into training images, for an image that carries it.",
        ),
        "run": Lazy(
            "dlr.commands.run",
            "run",
            "Train, in a Pod: torchrun's flags, a script and its arguments.",
            {"context_settings": {"ignore_unknown_options": True, "help_option_names": []}},
        ),
        "exec": Lazy(
            "dlr.commands.run",
            "execute",
            "Run a command in a Pod, once, whatever the world: what pulls shards needs no torch for it.",
            {"context_settings": {"ignore_unknown_options": True, "help_option_names": []}},
        ),
    }


application = typer.Typer(
    cls=Commands,
    help="Elastic, self-healing PyTorch training on Kubernetes, without a per-job master.",
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dlr {VERSION}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print dlr's version.")
    ] = False,
) -> None: ...


CLUSTER_OPTIONS = ("-n", "--namespace", "--context", "--kubeconfig")
"""As in kubectl, they may also stand in front of a command."""
JOB = "job"
"""The command whose own commands have these options."""


def with_options_behind(words: Sequence[str]) -> list[str]:
    """The words, with the cluster's options that stand in front of a command, or a job's, behind it."""
    rest, hoisted, path = list(words), [], []
    while rest:
        name, equals, _ = rest[0].partition("=")
        if name in CLUSTER_OPTIONS:
            length = 1 if equals else 2
            hoisted += rest[:length]
            rest = rest[length:]
        elif rest[0].startswith("-"):
            break
        else:
            path.append(rest.pop(0))
            if path != [JOB]:
                break
    return [*path, *hoisted, *rest]


def run(words: list[str], own_name: str) -> int:
    """Carry out a command of these words; the exit code.

    Raises:
        UsageError: an option or argument that cannot be meant.
    """
    try:
        code: Any = application(with_options_behind(words), prog_name=own_name, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # it is of typer's own errors, which have no public base
            raise
        raise UsageError(_sentence(error)) from error
    return code if isinstance(code, int) else 0


def _sentence(error: Any) -> str:
    """Typer's words in one line, and where to look."""
    text = " ".join(error.format_message().split())
    if not text.endswith((".", "?")):
        text += "."
    context = getattr(error, "ctx", None)
    return f"{text} See `{context.command_path} --help`." if context else text
