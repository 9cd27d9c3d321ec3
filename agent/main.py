"""Commands of a training Pod, by name, for `dlr` and for the launchers of the injected agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.flags import drop_our_rendezvous, is_below_an_agent
from agent.report import launch_mark
from agent.torch_compat import UnsupportedTorchError
from crds.names import POD_COMMANDS

REPORTING = {"run": "dlr", "exec": "dlr", "torchrun": "torchrun", "dlrover-run": "dlrover-run"}
"""Commands whose agent reports the end of training, with the program that the user calls."""
EXIT_USAGE = 2
EXIT_NO_TORCH = 69
"""EX_UNAVAILABLE: torch is missing."""


@dataclass(frozen=True)
class Sdk:
    """Modules of the SDK for training scripts."""

    modules: tuple[str, ...] = ()
    """Modules that most scripts import; they are imported before training processes are forked."""
    dlrover_clients: tuple[str, ...] = ()
    """Folders with replacements of DLRover's modules, for scripts that `dlrover-run` starts."""


def main(words: Sequence[str], sdk: Sdk) -> int:
    """Run one command by `run_command`; report a missing or unsuitable torch in one sentence."""
    try:
        return run_command(words, sdk)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _without_torch(
            f"{sys.executable} has no torch, which training needs; install it in this image, "
            "or name the Python that has it in DLR_PYTHON"
        )
    except UnsupportedTorchError as error:
        return _without_torch(str(error))
    except ImportError as error:
        if "torch" in sys.modules:  # torch itself is imported, so the error is another
            raise
        return _without_torch(f"{sys.executable} cannot import its torch: {error}")


def _without_torch(why: str) -> int:
    from agent.report.failed_start import refuse_to_start

    return refuse_to_start(f"dlr: {why}", EXIT_NO_TORCH)


def run_command(words: Sequence[str], sdk: Sdk) -> int:
    """Run one command of a training Pod, and return its exit code.

    Args:
        words: the command's name and its arguments.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    name, arguments = (words[0], list(words[1:])) if words else ("", [])
    command = COMMANDS.get(name)
    if (launcher := REPORTING.get(name)) and not is_below_an_agent(os.environ):
        launch_mark.write(os.environ, launcher)
    if command is None:
        commands = ", ".join(f"`dlr {name}`" for name in POD_COMMANDS)
        print(
            f"dlr: in a training Pod there are {commands}; `dlr {name}` is not one of them", file=sys.stderr
        )
        return EXIT_USAGE
    drop_our_rendezvous(os.environ)
    try:
        return command(arguments, sdk)
    except SystemExit as end:
        if not end.code:  # `--help`
            launch_mark.clear(os.environ)
        raise
    except BaseException as error:
        launch_mark.explain(os.environ, error)
        raise


def _run(arguments: Sequence[str], sdk: Sdk) -> int:
    from agent.launch import main as launch

    return launch(arguments, sdk.modules)


def _torchrun(arguments: Sequence[str], sdk: Sdk) -> int:
    """Run `torchrun` of an injected Pod: as `dlr run`, unless the command uses another rendezvous."""
    from agent.flags import Flags

    if Flags.read(arguments, os.environ).are_for_another_rendezvous(os.environ):
        launch_mark.clear(os.environ)  # no agent of ours will report
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        os.execve(sys.executable, command, os.environ)
    return _run(arguments, sdk)


def _dlrover_run(arguments: Sequence[str], sdk: Sdk) -> int:
    """Run DLRover's launcher, so that the command of a job need not change."""
    from agent.dlrover_run import main as dlrover_run

    return dlrover_run(arguments, sdk.modules, sdk.dlrover_clients)


def _hosts(arguments: Sequence[str], _: Sdk) -> int:
    """Print the hosts on which Horovod's driver in this Pod may start processes."""
    from agent.hosts import main as print_hosts

    return print_hosts(arguments)


def _exec(arguments: Sequence[str], _: Sdk) -> int:
    """Run a command that needs neither ranks nor torch."""
    from agent.exec import main as execute

    return execute(arguments)


def _check_worker(_: Sequence[str], __: Sdk) -> int:
    """Run the main program of a Pod that tests a node for a NodeCheck."""
    from agent.node_check.__main__ import main as check_worker

    return check_worker()


COMMANDS: dict[str, Callable[[Sequence[str], Sdk], int]] = {
    "run": _run,
    "exec": _exec,
    "torchrun": _torchrun,
    "dlrover-run": _dlrover_run,
    "check-worker": _check_worker,
    "hosts": _hosts,
}
