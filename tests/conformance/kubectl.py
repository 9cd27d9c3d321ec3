"""The real kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_SECONDS = 300.0
NO_HANDSHAKE = "TLS handshake timeout"
"""What kubectl says of a server that was busy for 10 s, before it has asked anything of it."""


@dataclass(frozen=True)
class Output:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


@dataclass(frozen=True)
class Kubectl:
    """One kubectl on one cluster."""

    program: str
    kubeconfig: Path
    home: Path
    """Its own HOME, so that no cached discovery is shared with another cluster."""

    def _command(self, arguments: tuple[str, ...], namespace: str | None) -> list[str]:
        where = ["--namespace", namespace] if namespace else []
        return [self.program, *where, *arguments]

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "TMPDIR")}
        return {**kept, "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig), "KUBE_EDITOR": "cat"}

    async def run(
        self,
        *arguments: str,
        namespace: str | None = None,
        stdin: Any = None,
        code: int | None = 0,
        environment: dict[str, str] | None = None,
    ) -> Output:
        """Run to the end. `stdin` is a manifest as an object, or text; `code` None allows any exit code."""
        text = stdin if isinstance(stdin, str) or stdin is None else json.dumps(stdin)
        output = await self._run(arguments, namespace, text, environment or {})
        while output.code and NO_HANDSHAKE in output.stderr:
            output = await self._run(arguments, namespace, text, environment or {})
        assert code is None or output.code == code, (
            f"kubectl {' '.join(arguments)}: exit code {output.code}\n{output.stdout}\n{output.stderr}"
        )
        return output

    async def _run(
        self, arguments: tuple[str, ...], namespace: str | None, text: str | None, environment: dict[str, str]
    ) -> Output:
        process = await asyncio.create_subprocess_exec(
            *self._command(arguments, namespace),
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._environment(), **environment},
        )
        try:
            stdout, stderr = await asyncio.wait_for(
                process.communicate(None if text is None else text.encode()), COMMAND_TIMEOUT_SECONDS
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Output(process.returncode or 0, stdout.decode(), stderr.decode())

    async def refused(self, *arguments: str, namespace: str | None = None, stdin: Any = None) -> str:
        """What it said when it failed, as it must."""
        output = await self.run(*arguments, namespace=namespace, stdin=stdin, code=None)
        assert output.code != 0, f"kubectl {' '.join(arguments)} was not refused: {output.stdout}"
        return output.stderr
