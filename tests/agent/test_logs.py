"""No thread of an agent ends unheard."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.agent.fork_server import ROOT

pytestmark = pytest.mark.real

SCRIPT = """
import threading
from agent.logs import log_to_stderr
log_to_stderr()
thread = threading.Thread(target=lambda: {}["step"], name="dlr-example")
thread.start(); thread.join()
thread = threading.Thread(target=lambda: exit(3)); thread.start(); thread.join()
"""


def test_a_thread_that_ends_by_a_defect_is_told_with_its_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert (
        done.stderr.count("the thread dlr-example has ended, and the agent goes on without what it did") == 1
    )
    assert done.stderr.rstrip().endswith("KeyError: 'step'")
