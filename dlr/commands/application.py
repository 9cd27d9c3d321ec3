"""The typer application: every command under its name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from crds.release import VERSION
from dlr.commands.lazy import HELP_NAMES, Lazy, LazyGroup
from dlr.kube.errors import UsageError

RAW = {"context_settings": {"ignore_unknown_options": True, "help_option_names": []}}
"""Settings of a command that passes its arguments to another program."""


class Commands(LazyGroup):
    lazy: ClassVar = {
        "up": Lazy("cluster.up", "Start a local Kubernetes of processes, or bring the earlier one back."),
        "down": Lazy("cluster.down", "Stop the embedded cluster; its objects stay for the next `dlr up`."),
        "kubeconfig": Lazy("cluster.kubeconfig", "Print where the embedded cluster's kubeconfig is."),
        "job": Lazy("job.commands.jobs", "Submit, look at, change and delete training jobs."),
        "hosts": Lazy("hosts.hosts", "Print a job's workers for Horovod: `address:slots`."),
        "map": Lazy("map.command.command", "Run a command for each line of standard input, in Pods."),
        "dashboard": Lazy("dashboard.dashboard", "Show jobs on a web page of this machine alone."),
        "node-check": Lazy("node_check.command.checks", "Check nodes: devices, and network in pairs."),
        "node-health": Lazy("node_health.node_health", "Give NVSentinel and NVRx dlr's verdict on a node."),
        "simulate": Lazy("simulate.simulate", "Simulate a fleet with the controller's own decisions."),
        "install": Lazy("install.command.install", "Install dlr into a cluster, or upgrade it."),
        "uninstall": Lazy("install.command.uninstall", "Take dlr out of a cluster; refused while jobs run."),
        "doctor": Lazy("doctor.command.doctor", "Check whether a cluster has what dlr needs."),
        "controller": Lazy("controller.controller", "Run the controller."),
        "convert": Lazy("convert.command", "Print manifests of other operators as ElasticJobs."),
        "manifests": Lazy("install.command.manifests", "Print what `dlr install` applies, for kubectl."),
        "bundle": Lazy("bundle.bundle", "Write the agent that is injected into training images."),
        "run": Lazy("run.run", "Train, in a Pod: torchrun's flags, a script and its arguments.", RAW),
        "exec": Lazy("run.execute", "Run a command in a Pod, once, whatever the world.", RAW),
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


def run(words: list[str], own_name: str) -> int:
    """Run a command with these arguments, and return its exit code.

    Raises:
        UsageError: an option or argument is invalid.
    """
    try:
        code: Any = application(words, prog_name=own_name, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # no error of typer's
            raise
        raise UsageError(_sentence(error)) from error
    return code if isinstance(code, int) else 0


def _sentence(error: Any) -> str:
    """Return typer's message in one line, with a pointer to the help."""
    from crds.model import own_reason

    text = " ".join(own_reason(error.format_message()).split())
    if not text.endswith((".", "?")):
        text += "."
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    if hasattr(error, "option_name") and any("--" in (each.metavar or "") for each in context.command.params):
        text += " Options of the script stand behind `--`."
    return f"{text} See `{context.command_path} --help`."
