"""`python -m localcluster.apiserver --home DIR --port N`: the API server as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from localcluster.apiserver.database import DatabaseUnusable
from localcluster.apiserver.server import CannotListen, serve
from localcluster.paths import Home, default_root, write_private

PROCESS = "apiserver"


def main() -> int:
    parser = argparse.ArgumentParser(prog="localcluster.apiserver", description=__doc__)
    parser.add_argument("--home", type=Path, default=default_root(), help="the cluster's folder")
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1 (0: any free one)")
    arguments = parser.parse_args()
    _allow_many_connections()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(_run(Home(arguments.home.absolute()), arguments.port))
    except (CannotListen, DatabaseUnusable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _allow_many_connections() -> None:
    """Each agent, kubelet and kubectl holds some; the usual soft limit is 1,024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(home: Home, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(stop_signal, stopped.set)
    async with serve(home, port) as serving:
        pidfile = home.pidfile(PROCESS)
        write_private(pidfile, str(os.getpid()).encode())
        print(f"listening on {serving.url}", flush=True)
        try:
            await stopped.wait()
        finally:
            pidfile.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
