"""Result of a training: a value that rank 0 stores on the job.

The process writes it beside its progress record (crds.progress_record), its agent reports it when all
processes have succeeded, and `dlr.Client().job(NAME).result()` reads it. It is for figures, not for models,
which go to storage. Outside of dlr nothing happens.
"""

from __future__ import annotations

import os

from crds.progress_record import ENV_PROGRESS_FILE, MAX_RESULT, RESULT_SUFFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def report_result(value: Any) -> None:
    """Store a value on the job, such as `{"accuracy": 0.97}`; the last value of rank 0 counts.

    It never raises, since training is over by then: for a value that cannot be kept, the job keeps the
    reason. The limit is 8,192 characters of JSON.
    """
    path = os.environ.get(ENV_PROGRESS_FILE)
    if not path:
        return
    result = f"{path}{RESULT_SUFFIX}"
    try:
        with open(f"{result}.new", "w") as file:  # noqa: PTH123 (pathlib takes longer to import)
            file.write(encoded(value))
        os.replace(f"{result}.new", result)  # noqa: PTH105 (as above)
    except OSError:
        pass  # as with steps, a failed report must not fail the training


def encoded(value: Any) -> str:
    """Return `{"value": …}` as JSON, or `{"error": …}` with the reason why it cannot be kept."""
    import json

    try:
        text = json.dumps({"value": value}, separators=(",", ":"), allow_nan=True)
    except Exception as error:  # a class of the script's own may raise anything
        return json.dumps(
            {"error": f"the result, of type {type(value).__name__}, is not JSON: {error}"[:500]}
        )
    if len(text) > MAX_RESULT:
        return json.dumps(
            {"error": f"the result has {len(text)} characters as JSON, and {MAX_RESULT} are kept: save it"}
        )
    return text
