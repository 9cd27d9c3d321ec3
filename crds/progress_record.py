"""The progress record: what a training process and its agent tell each other through files.

Of the record, the process writes all words but ORDER, and the agent reads it now and then.
This module imports nothing: `import dlr` brings it into every training process.
"""

from __future__ import annotations

ENV_ROUND = "DLR_ROUND"
"""Variable with the round of the world that a training process belongs to."""
ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"
"""Names a training process's file, which the process maps; the agent reads it now and then."""

TROUBLE_SUFFIX = ".trouble"
"""Of the record's name, for the JSON file beside it in which the process says what does not work with its
checkpoints: a message by `CheckpointTrouble`, which is empty if that works. It is replaced as a whole."""

RESULT_SUFFIX = ".result"
"""Of the record's name, for the JSON file beside it with what training came to: `{"value": …}`, or
`{"error": …}` where that cannot be kept. It is replaced as a whole."""
MAX_RESULT = 8_192
"""Characters of it."""

ENDED_SUFFIX = ".ended"
"""Of the record's name, for the JSON file beside it that a forked process makes when its script has ended:
`{"code": …, "raised": …, "at": …, "threads": {…}}`, that is the exit code, whether an exception ended it, the
time (CLOCK_MONOTONIC), and by identifier the names of the threads that the interpreter waits for."""

GROUP_SUFFIX = ".group"
"""Of the record's name, for the JSON file beside it that a forked process makes once it has a process group:
`{"imported": …, "initialized": …}`, the times (CLOCK_MONOTONIC) at which its first `init_process_group` began
and had ended."""

ENV_STACKS_FILE = "DLR_STACKS_FILE"
ENV_STACKS_SIGNAL = "DLR_STACKS_SIGNAL"
"""On this signal the process writes the stacks of its threads into that file."""
ENV_RECORDER_SOCKET = "DLR_RECORDER_SOCKET"
"""Path of the Unix socket at which the process answers for torch's flight recorder."""

PROGRESS_FORMAT = "qdqdqdqdqdqdqqqqqq"
"""For `struct`: pairs of an int64 and a float64, then six int64, in native byte order. Times are of
CLOCK_MONOTONIC, in seconds, and 0 as long as there is nothing to tell. Numbers follow."""
MAX_NUMBERS = 8
"""Numbers that a process tells beside its step (`dlr.report`), by name; the loss is one of them."""
MAX_NUMBER_NAME = 24
"""Bytes of such a name."""
NUMBERS_FORMAT = f"d{MAX_NUMBER_NAME}s" * MAX_NUMBERS
"""What follows in the file: each number and its name in UTF-8, which is written after it; empty for none."""
WORD_BYTES = 8
FIRST_NUMBER, WORDS_OF_NUMBER = len(PROGRESS_FORMAT), 1 + MAX_NUMBER_NAME // WORD_BYTES
"""The word of the first number, and the words that a number and its name take."""
RECORD_BYTES = WORD_BYTES * (FIRST_NUMBER + WORDS_OF_NUMBER * MAX_NUMBERS)

STEP, STEP_AT = 0, 1
"""Positions in it: the newest step, and when it was told."""
CHECKPOINT, CHECKPOINT_AT = 2, 3
"""The step of the last checkpoint, and when it was told."""
NON_FINITE = 4
"""One more than the first step of which the loss was told to be NaN or infinite; 0 if there is none."""
BUSY_UNTIL = 5
"""Until then no step is to be expected."""
FIRST_STEP, FIRST_STEP_AT = 6, 7
"""The first step, and when it was told."""
COUNTED, COUNTED_AT = 8, 9
FIRST_COUNTED, FIRST_COUNTED_AT = 10, 11
"""The newest and the first step that `agent.warm.step_counter` has counted, and when. A script that tells
its steps has its word."""
SPEAKS = 12
"""TAKES_PART once the process looks at ORDER after each step; GOES_ALONE once it leaves by no vote."""
TAKES_PART, GOES_ALONE = 1, 2
BOUNDARY = 13
"""The step that the process has ended last, and -1 before the first. It is written before ORDER is read."""
ORDER = 14
"""What the agent wants at the end of a step (`hold_until`, `leave_at`); 0: go on."""
KEEPS_IN = 15
"""The safest place in which the process can keep the step after which it leaves: a `KeptIn`, or 0 for any."""
START_UNKNOWN = 16
"""1 where nobody knows which step the count began with. It is written before FIRST_COUNTED."""
SAMPLES = 17
"""How many samples a step has, over all ranks; 0 if not told."""


EXIT_LEFT = 143
"""With this code a process leaves by vote: as one that SIGTERM has ended."""

GO_ON = 0


def hold_until(deadline: float) -> int:
    """Wait at the end of the step, until there is another order, or CLOCK_MONOTONIC is at `deadline`."""
    return -max(int(deadline * 1_000), 1)


def leave_at(step: int, tier: int) -> int:
    """Go on to the first step that is `step` or a later one, save it in the tier (`KeptIn`), and leave."""
    return step << 2 | tier


def stay_at(step: int, tier: int) -> int:
    """Do as `leave_at`, but the process lives on into the next round, if it can. The step is at least 1."""
    return step << 2 | tier ^ 2


def is_to_leave(order: int, boundary: int) -> bool:
    """Whether a process that has ended step `boundary` leaves by the order, and lives on or not."""
    return order > GO_ON and boundary >= order >> 2


def is_to_stay(order: int) -> bool:
    """Whether a process that leaves the round by the order is to live on."""
    return order > GO_ON and order & 3 in (0, 3)


def tier_of(order: int) -> int:
    """The tier (`KeptIn`) of an order to leave."""
    return order & 3 ^ 2 if is_to_stay(order) else order & 3
