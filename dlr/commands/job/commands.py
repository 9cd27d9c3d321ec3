"""The commands of `dlr job` under their names."""

from __future__ import annotations

from typing import ClassVar

import typer

from dlr.commands.lazy import HELP_NAMES, Lazy, LazyGroup


class JobCommands(LazyGroup):
    lazy: ClassVar = {
        "submit": Lazy("dlr.commands.job.submit", "submit", "Create the ElasticJobs of a file."),
        "launch": Lazy(
            "dlr.commands.job.launch",
            "launch",
            "Run a script of this machine in as many Pods, without YAML; --dry-run prints the YAML.",
        ),
        "list": Lazy("dlr.commands.job.lists", "list_jobs", "List ElasticJobs."),
        "status": Lazy(
            "dlr.commands.job.status",
            "status",
            "Show a job on one screen: phase, world, progress, goodput, workers, last Events.",
        ),
        "logs": Lazy("dlr.commands.job.logs", "logs", "Print what a job's workers print."),
        "stacks": Lazy(
            "dlr.commands.job.stacks",
            "stacks",
            "Show where all training processes are at this moment: equal stacks once, the odd ones first.",
        ),
        "profile": Lazy(
            "dlr.commands.job.profile",
            "profile",
            "Record what one process does for some seconds, as a file to open in Perfetto (ui.perfetto.dev).",
        ),
        "events": Lazy(
            "dlr.commands.job.lists",
            "events",
            "Show the Events of a job, its workers and its Pods, oldest first.",
        ),
        "timeline": Lazy(
            "dlr.commands.job.timeline",
            "timeline",
            "Draw a job's life: what its workers did when, rounds, failures, and what its time came to.",
        ),
        "diagnose": Lazy(
            "dlr.commands.job.diagnose",
            "diagnose",
            "Say on one page how a job is, why, on what evidence, and what to do; for a ticket.",
        ),
        "scale": Lazy("dlr.commands.job.changes", "scale", "Change the number of a job's workers."),
        "suspend": Lazy(
            "dlr.commands.job.changes",
            "suspend",
            "Stop a job's training, with the time to save, and delete its Pods; its state stays.",
        ),
        "resume": Lazy("dlr.commands.job.changes", "resume", "Let a suspended job train again."),
        "delete": Lazy("dlr.commands.job.changes", "delete", "Delete ElasticJobs with everything they made."),
    }


jobs = typer.Typer(
    cls=JobCommands,
    help="Submit, look at, change and delete training jobs.",
    context_settings=HELP_NAMES,
    add_completion=False,
)


@jobs.callback()
def _no_options() -> None: ...
