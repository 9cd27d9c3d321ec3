"""`python -m tests.agent.forked_parent FOLDER …`: what `dlr run` has forked, without a cluster.

FOLDER/orders.json has commands by name; each one's output goes to NAME.out and NAME.err, all exit codes to
codes.json.
"""

import json
import os
import signal
import sys
from pathlib import Path

from agent.launch import fork_parent, import_torch, unbuffer
from agent.warm import Preloads
from agent.warm.parent import reason_not_to_fork
from agent.warm.warm_parent import WarmStart

SECONDS = 300.0


def run(warm: WarmStart, argv: list[str], stem: Path, env: dict[str, str]) -> int:
    with stem.with_suffix(".out").open("wb") as out, stem.with_suffix(".err").open("wb") as err:
        process = warm.start(argv, env, {1: out.fileno(), 2: err.fileno()})
        assert process is not None, "it was not forked"
        return process.wait(SECONDS)


def main() -> None:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # the agent's, and none of the scripts'
    env = dict(os.environ)
    unbuffer()
    import_torch(env)
    assert not reason_not_to_fork()
    parent = fork_parent(env, Preloads())
    if parent is None:
        return  # a script has ended here
    warm = WarmStart(Preloads(), parent)
    never, _ = os.pipe()
    warm.await_warm(never, lambda: True, SECONDS)
    orders = json.loads((folder / "orders.json").read_text())
    codes = {name: run(warm, argv, folder / name, env) for name, argv in orders.items()}
    (folder / "codes.json").write_text(json.dumps(codes))
    assert warm._parent is parent
    warm.close()


if __name__ == "__main__":
    main()
