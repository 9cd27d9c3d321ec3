"""The commands of a training Pod, by name: what `dlr run` and the launchers of the injected agent start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.flags import is_below_an_agent
from agent.report import launch_mark
from agent.torch_compat import UnsupportedTorchError
from crds.names import POD_COMMANDS

REPORTING = {"run": "dlr", "exec": "dlr", "torchrun": "torchrun", "dlrover-run": "dlrover-run"}
"""The commands whose agent reports how training ends, and the program that people call."""
EXIT_USAGE = 2
EXIT_NO_TORCH = 69
"""EX_UNAVAILABLE: what the command needs is not there."""


@dataclass(frozen=True)
class Sdk:
    """What whoever starts the agent gives to training scripts."""

    modules: tuple[str, ...] = ()
    """Modules that most scripts import, to be imported before training processes are forked."""
    dlrover_clients: tuple[str, ...] = ()
    """Folders with stand-ins for DLRover's modules, for scripts that `dlrover-run` starts."""


def main(words: Sequence[str], sdk: Sdk) -> int:
    """Run one command as `run_command` does; print what is wrong with the torch in one sentence."""
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
        if "torch" in sys.modules:  # A torch that could not be imported is not there.
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
        known = ", ".join(f"`dlr {name}`" for name in POD_COMMANDS)
        print(f"dlr: in a training Pod there are {known}; `dlr {name}` is not one of them", file=sys.stderr)
        return EXIT_USAGE
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
    """`torchrun` in an injected Pod: `dlr run`, unless the command asks for another rendezvous."""
    from agent.flags import Flags, without_our_rendezvous

    if Flags.read(arguments, os.environ).are_for_another_rendezvous(os.environ):
        launch_mark.clear(os.environ)  # no agent of ours will report
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        os.execve(sys.executable, command, without_our_rendezvous(os.environ))
    return _run(arguments, sdk)


def _dlrover_run(arguments: Sequence[str], sdk: Sdk) -> int:
    """DLRover's launcher, for whose users the command of a job need not change."""
    from agent.dlrover_run import main as dlrover_run

    return dlrover_run(arguments, sdk.modules, sdk.dlrover_clients)


def _hosts(arguments: Sequence[str], _: Sdk) -> int:
    """The hosts on which Horovod's driver in this Pod may start processes."""
    from agent.hosts import main as print_hosts

    return print_hosts(arguments)


def _exec(arguments: Sequence[str], _: Sdk) -> int:
    """A command that is nobody's rank, and needs no torch."""
    from agent.exec import main as execute

    return execute(arguments)


def _check_worker(_: Sequence[str], __: Sdk) -> int:
    """The main program of a Pod that tests a node for a NodeCheck."""
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
