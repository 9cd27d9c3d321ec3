"""The commands of `dlr job` under their names."""

from __future__ import annotations

from typing import ClassVar

import typer

from dlr.commands.lazy import HELP_NAMES, Lazy, LazyGroup


class JobCommands(LazyGroup):
    lazy: ClassVar = {
        "submit": Lazy("job.submit.submit", "Create the ElasticJobs of a file."),
        "launch": Lazy("job.launch.launch", "Run a script of this machine in Pods, without YAML."),
        "list": Lazy("job.lists.list_jobs", "List ElasticJobs."),
        "status": Lazy("job.status.status", "Show a job on one screen: phase, world, workers, Events."),
        "logs": Lazy("job.logs.logs", "Print what a job's workers print."),
        "stacks": Lazy("job.stacks.stacks", "Show where all training processes are now."),
        "timeline": Lazy("job.timeline.timeline", "Draw a job's life: workers, rounds, failures."),
        "trace": Lazy("job.trace.trace", "Print a job's life as a trace for Perfetto."),
        "diagnose": Lazy("job.diagnose.diagnose", "Say on one page how a job is, why, and what to do."),
        "scale": Lazy("job.changes.scale", "Change the number of a job's workers."),
        "suspend": Lazy("job.changes.suspend", "Stop a job's training after time to save; its state stays."),
        "resume": Lazy("job.changes.resume", "Let a suspended job train again."),
        "delete": Lazy("job.changes.delete", "Delete ElasticJobs with everything they made."),
    }


jobs = typer.Typer(
    cls=JobCommands,
    help="Submit, look at, change and delete training jobs.",
    context_settings=HELP_NAMES,
    add_completion=False,
)


@jobs.callback()
def _no_options() -> None: ...
