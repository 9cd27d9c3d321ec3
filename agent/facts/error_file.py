"""The agent's own error file, which torchrun has too: whoever starts it reads there why it ended.

Launchers such as TorchX name it in the agent's environment, mostly the container's termination log.
https://docs.pytorch.org/docs/stable/elastic/errors.html
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from agent.facts.failure import Failure, clip

logger = logging.getLogger(__name__)

VARIABLE = "TORCHELASTIC_ERROR_FILE"
MESSAGE_BYTES, TRACEBACK_BYTES = 1024, 2048
"""A termination log has 4,096 bytes, for what JSON makes of both."""


def write_error_file(environ: Mapping[str, str], failure: Failure) -> None:
    """Write the failure that ends this agent, as torch's `@record` has it, if a file is named."""
    if not (path := environ.get(VARIABLE)):
        return
    message, _, traceback = failure.message.partition("\n")
    content = {
        "message": {
            "message": clip(message, MESSAGE_BYTES, head=MESSAGE_BYTES // 2),
            "extraInfo": {
                "py_callstack": clip(traceback, TRACEBACK_BYTES, head=TRACEBACK_BYTES // 2),
                "timestamp": str(int(failure.time.timestamp())),
            },
        }
    }
    try:
        Path(path).write_text(json.dumps(content))  # not renamed: a termination log is a mount
    except OSError as error:
        logger.warning("the error file %s cannot be written: %s", path, error)
