"""A user's writer that prints, as does the import of its module."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

print('{"done": true}')


class Talking(FileSystemWriter):
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        for number in range(9):
            print(f'{{"number": {number}, "done": true}}', flush=True)
        os.write(1, b'{"number": 1, "done": true}\n')
        subprocess.run(["echo", '{"number": 1, "done": true}'], check=True)
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
