"""`dlr job launch`: a script of this machine as a job, without YAML."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dlr.client.client import submit
from dlr.client.image import default_image
from dlr.client.manifest import JobLaunch, new_name, objects
from dlr.client.program import InImage, program_of
from dlr.commands.options import (
    ClusterOptions,
    complete_job_name,
    new_job_name,
    none_empty,
    not_empty,
    object_name,
    with_options,
)
from dlr.commands.output import as_yaml
from dlr.job.lookup import get_job
from dlr.kube.errors import UsageError

WHERE = "What it runs in"


Script = Annotated[
    str, typer.Argument(callback=not_empty, help="A Python script of this machine; this one file is shipped.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGS]...", help="Arguments of the script.", show_default=False),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of Pods; default: 1.")]
Least = Annotated[
    int | None, typer.Option("--min", min=1, help="Fewest Pods to train with; default: --workers.")
]
Most = Annotated[int | None, typer.Option("--max", min=1, help="Most Pods the job can be scaled to.")]
Name = Annotated[
    str | None, typer.Option(callback=new_job_name, help="The new job's name; default: one by SCRIPT's.")
]
Like = Annotated[
    str | None,
    typer.Option(
        callback=object_name,
        autocompletion=complete_job_name,
        help="A job of this namespace, finished or not, to copy all else from.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the YAML for `kubectl apply -f -`, and make nothing.")
]
Image = Annotated[
    str | None,
    typer.Option(
        callback=not_empty,
        help="An image with Python and torch; the embedded cluster needs none, --dry-run does.",
        rich_help_panel=WHERE,
    ),
]
InImageOption = Annotated[
    bool,
    typer.Option(
        "--in-image",
        help="SCRIPT is a path in the image, or on a volume of the Pods; nothing is shipped.",
        rich_help_panel=WHERE,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc-per-node",
        min=1,
        help="Processes in each Pod; default: one for each GPU, or one.",
        rich_help_panel=WHERE,
    ),
]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs of each Pod.", rich_help_panel=WHERE)]
Cpu = Annotated[
    str | None, typer.Option(callback=not_empty, help="CPU of each Pod, such as 500m.", rich_help_panel=WHERE)
]
Memory = Annotated[
    str | None,
    typer.Option(callback=not_empty, help="Memory of each Pod, such as 2Gi.", rich_help_panel=WHERE),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        callback=none_empty,
        help="An environment variable; may be repeated.",
        rich_help_panel=WHERE,
    ),
]


@with_options("cluster", ClusterOptions)
def launch(
    cluster: ClusterOptions,
    script: Script,
    arguments: Arguments = None,
    workers: Workers = None,
    least: Least = None,
    most: Most = None,
    name: Name = None,
    like: Like = None,
    dry_run: DryRun = False,
    image: Image = None,
    in_image: InImageOption = False,
    processes: Processes = None,
    gpus: Gpus = None,
    cpu: Cpu = None,
    memory: Memory = None,
    env: Env = None,
) -> None:
    """Run a script of this machine in Pods, without YAML."""
    program = program_of(InImage(script) if in_image else Path(script), arguments or ())
    wanted = JobLaunch(
        program=program,
        name=name or new_name(program),
        workers=workers,
        min_workers=least,
        max_workers=most,
        processes=processes,
        image=image,
        requests={key: value for key, value in (("cpu", cpu), ("memory", memory)) if value},
        gpus=gpus,
        env=dict(map(variable, env or ())),
    )
    if dry_run and like is None:  # no cluster is asked
        print(as_yaml(objects(wanted)), end="")
        return
    api = cluster.api()
    if not image and like is None:
        wanted = replace(wanted, image=default_image(api))
    made = objects(wanted, get_job(api, like) if like else None)
    if dry_run:
        print(as_yaml(made), end="")
        return
    job, warnings = submit(api, made)
    for warning in warnings:
        print(f"dlr: warning: {warning}", file=sys.stderr)
    name = job["metadata"]["name"]
    follow = f"dlr job status {name} -n {api.namespace} --watch"
    print(f"elasticjob {api.namespace}/{name} created; follow it with: {follow}")


def variable(text: str) -> tuple[str, str]:
    """Split NAME=VALUE.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--env {text!r} is not NAME=VALUE.")
    return name, value
