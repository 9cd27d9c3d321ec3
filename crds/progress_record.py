"""Progress record: the file through which a training process and its agent communicate.

The process writes all words but ORDER, and the agent reads the record from time to time. This module
imports nothing: `import dlr` loads it into every training process.
"""

from __future__ import annotations

ENV_ROUND = "DLR_ROUND"
"""Variable with the round of the world that a training process belongs to."""
ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"
"""Variable with the path of a training process's record, which the process maps into memory."""

TROUBLE_SUFFIX = ".trouble"
"""Suffix of the JSON file beside the record with the process's checkpoint problems: messages by
`CheckpointTrouble`, empty for one that is over. The file is replaced as a whole."""

RESULT_SUFFIX = ".result"
"""Suffix of the JSON file beside the record with the result of training: `{"value": …}`, or `{"error": …}` if
the value cannot be kept. The file is replaced as a whole."""
MAX_RESULT = 8_192
"""Maximum characters of it."""

ENDED_SUFFIX = ".ended"
"""Suffix of the JSON file beside the record that a forked process writes when its script has ended: `{"code":
…, "raised": …, "at": …, "threads": {…}}`: exit code, whether an exception ended it, time (CLOCK_MONOTONIC),
and the names, by identifier, of the threads that the interpreter waits for."""

GROUP_SUFFIX = ".group"
"""Suffix of the JSON file beside the record that a forked process writes once it has a process group:
`{"imported": …, "initialized": …}`, the times (CLOCK_MONOTONIC) at which its first `init_process_group` began
and ended."""

ENV_STACKS_FILE = "DLR_STACKS_FILE"
ENV_STACKS_SIGNAL = "DLR_STACKS_SIGNAL"
"""Signal on which the process writes the stacks of its threads into that file."""
ENV_RECORDER_SOCKET = "DLR_RECORDER_SOCKET"
"""Path of the Unix socket at which the process answers requests for torch's flight recorder."""

PROGRESS_FORMAT = "qdqdqdqdqdqdqqqqqq"
"""Format for `struct`: pairs of an int64 and a float64, then six int64, in native byte order. Times are of
CLOCK_MONOTONIC, in seconds, and 0 until there is something to report. Numbers follow."""
MAX_NUMBERS = 8
"""Numbers by name, including the loss, that a process reports with its step (`dlr.report`)."""
MAX_NUMBER_NAME = 24
"""Bytes of such a name."""
NUMBERS_FORMAT = f"d{MAX_NUMBER_NAME}s" * MAX_NUMBERS
"""Format of the numbers: each with its name in UTF-8, which is written after it; empty for none."""
WORD_BYTES = 8
FIRST_NUMBER, WORDS_OF_NUMBER = len(PROGRESS_FORMAT), 1 + MAX_NUMBER_NAME // WORD_BYTES
"""Index of the first number's word, and words per number with its name."""
RECORD_BYTES = WORD_BYTES * (FIRST_NUMBER + WORDS_OF_NUMBER * MAX_NUMBERS)

STEP, STEP_AT = 0, 1
"""Words of the newest step, and of the time when it was reported."""
CHECKPOINT, CHECKPOINT_AT = 2, 3
"""Words of the last checkpoint's step, and of the time when it was reported."""
NON_FINITE = 4
"""One more than the first step with a reported loss of NaN or infinity; 0 if there is none."""
BUSY_UNTIL = 5
"""Time until which no step is expected."""
FIRST_STEP, FIRST_STEP_AT = 6, 7
"""Words of the first step, and of the time when it was reported."""
COUNTED, COUNTED_AT = 8, 9
FIRST_COUNTED, FIRST_COUNTED_AT = 10, 11
"""Newest and first step that `agent.warm.step_counter` has counted, with their times. Reported steps take
precedence."""
SPEAKS = 12
"""TAKES_PART once the process reads ORDER after each step; GOES_ALONE once it leaves without a vote."""
TAKES_PART, GOES_ALONE = 1, 2
BOUNDARY = 13
"""Last step that the process completed; -1 before the first. It is written before ORDER is read."""
ORDER = 14
"""Order of the agent for the end of a step (`hold_until`, `leave_at`); 0: go on."""
KEEPS_IN = 15
"""Safest place in which the process can save the step after which it leaves: a `KeptIn`, or 0 for any."""
START_UNKNOWN = 16
"""1 if the step at which the count began is unknown. It is written before FIRST_COUNTED."""
SAMPLES = 17
"""Samples per step, over all ranks; 0 if not reported."""


EXIT_LEFT = 143
"""Exit code of a process that leaves by vote, the same as after SIGTERM."""

GO_ON = 0


def hold_until(deadline: float) -> int:
    """Order to wait at the end of the step for another order, at most until CLOCK_MONOTONIC reaches
    `deadline`."""
    return -max(int(deadline * 1_000), 1)


def leave_at(step: int, tier: int) -> int:
    """Order to go on to the first step that is `step` or later, save it in the tier (`KeptIn`), and leave."""
    return step << 2 | tier


def stay_at(step: int, tier: int) -> int:
    """Order like `leave_at`, after which the process survives into the next round, if it can. The step is at
    least 1."""
    return step << 2 | tier ^ 2


def is_to_leave(order: int, boundary: int) -> bool:
    """Return whether a process that has completed step `boundary` leaves by the order, surviving or not."""
    return order > GO_ON and boundary >= order >> 2


def is_to_stay(order: int) -> bool:
    """Return whether a process that leaves the round by the order survives into the next."""
    return order > GO_ON and order & 3 in (0, 3)


def tier_of(order: int) -> int:
    """Return the tier (`KeptIn`) of an order to leave."""
    return order & 3 ^ 2 if is_to_stay(order) else order & 3
