"""The `dlr` command: hands `run` to the agent, and everything else to the typer application.

Some commands run in images of their own, which need not have the command line's packages: `dlr run` and
`dlr check-worker` beside torch, `dlr controller` and `dlr bundle` beside the Kubernetes client. So these are
taken out before anything else is imported.

Installed as `kubectl-dlr` too, it is `kubectl dlr`: kubectl runs a program of that name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from crds.names import POD_COMMANDS
from dlr.commands.errors import CommandError

CANNOT_LOAD = 69
"""The exit code when a package is missing or broken (EX_UNAVAILABLE): 1 is a verdict of `dlr node-check`."""
CRASHED = 70
"""The exit code of a defect of dlr's own (EX_SOFTWARE); Python's would be 1."""
EXTRAS = {"matplotlib": "timeline"}
"""The extra that brings a package; for all others it is `cli`."""


class PythonTooOld(CommandError):
    exit_code = CANNOT_LOAD


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(_dispatch(words))
    except CommandError as error:
        print(f"dlr: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        print(f"dlr: {_what_to_install(error)}", file=sys.stderr)
        sys.exit(CANNOT_LOAD)
    except ImportError as error:
        print(f"dlr: a package that this command needs cannot be loaded: {error}", file=sys.stderr)
        sys.exit(CANNOT_LOAD)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(CRASHED)


def _dispatch(words: list[str]) -> int | None:
    if words and words[0] in POD_COMMANDS:
        from agent.main import run_command

        return run_command(words)
    if sys.version_info < (3, 11):  # noqa: UP036 - the SDK and the agent run on 3.10 too
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise PythonTooOld(
            f"this command needs Python 3.11 or newer, and this is {python}; `dlr run` works here"
        )
    if words[:1] in (["controller"], ["bundle"]):
        import typer

        name = words[0]
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        alone.command()(getattr(importlib.import_module(f"dlr.commands.{name}"), name))
        alone(words[1:], prog_name=f"{_own_name()} {name}")
    from dlr.commands.application import application

    application(words, prog_name=_own_name())
    return None


def _own_name() -> str:
    """As the person has called it."""
    return "kubectl dlr" if Path(sys.argv[0]).name.startswith("kubectl-dlr") else "dlr"


def _what_to_install(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    how = (
        "pip install torch"
        if package == "torch"
        else f"install dlr with its extra, as in: pip install '.[{EXTRAS.get(package, 'cli')}]'"
    )
    return f"this command needs the package {package}, which is not installed here; {how}"


if __name__ == "__main__":
    main()
