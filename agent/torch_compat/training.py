"""What a training process uses of torch beside the script's own calls.

torch is imported in the functions: the parent of the training processes reads this before it has torch. Where
a torch lacks something, the caller gets the ImportError or AttributeError, and does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Hook = Callable[[Any, Any, Any], None]
"""torch's hook for the steps of optimizers: the optimizer, its arguments and its keywords."""


def uncompiled(hook: Hook) -> Hook:
    """Have torch.compile call the hook as it is, where the step itself is compiled, and not compile it, too.

    `torch.compiler.disable` does that for all that is called below it, which takes 0.5 µs a call. `skip` is
    in 2.6 to 2.13.
    """
    from torch._dynamo.decorators import skip

    return skip(hook)
