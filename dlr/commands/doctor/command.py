"""The command `dlr doctor`. Its dependencies are imported when it runs."""

from __future__ import annotations

import typer

import deploy
from dlr.commands.install.command import ControllerNamespace, Installation, JobsNamespace
from dlr.commands.options import Context, Kubeconfig, Output
from dlr.commands.output import Format, print_json, show_table


def doctor(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    jobs_namespace: JobsNamespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Check whether a cluster has what dlr needs.

    Exit code: 1 if something is a problem.
    """
    documents = Installation(namespace, jobs_namespace=jobs_namespace).documents()
    from dlr.commands.doctor.facts import gather
    from dlr.commands.doctor.verdicts import Level, verdicts
    from dlr.kube.api import Api
    from dlr.kube.connection import connect
    from dlr.kube.waiting import waiting_for

    connection = connect(kubeconfig, context, namespace)
    with waiting_for("what the cluster says of itself"):
        lines = verdicts(gather(Api(connection), documents))
    if output is Format.JSON:
        print_json([{"level": line.level, "topic": line.topic, "text": line.text} for line in lines])
    else:
        show_table(("", "TOPIC", "FOUND"), [(line.level, line.topic, line.text) for line in lines])
    raise typer.Exit(int(any(line.level is Level.PROBLEM for line in lines)))
