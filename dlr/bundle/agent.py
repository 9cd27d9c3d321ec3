"""Builds the files that are injected into training images: `dlr.pyz`, and launchers for the image's Python.

The zip holds `dlr` for training scripts, the agent with the probes, and their dependencies besides torch and
the standard library, all below `dlr`: source for every Python from 3.10 on, and bytecode of the Python that
builds it. The launchers have the zip's SHA-256, to detect damage and a mixture of two builds.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import marshal
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import agent
import controller
import crds
import dlr
import healthcheck
from crds.names import AGENT_ZIP, ENV_TERMINATION_LOG, HAS_BEGUN
from crds.release import DISTRIBUTION, VERSION
from dlr.bundle.relocate import INTERNAL, PARTS, module_name, relocated

LAUNCHERS = {"dlr": "", "torchrun": "torchrun", "dlrover-run": "dlrover-run"}
"""Programs in `bin/`, each with its command of `agent.main`."""

VENDORED = {"tenacity": "tenacity", "urllib3": "urllib3", "pynvml": "nvidia-ml-py"}
"""Dependencies of the agent besides torch: module and distribution."""
_NOT_VENDORED = ("contrib/emscripten",)
"""Parts of urllib3 for other platforms, whose imports cannot be rewritten."""

_SDK = ("__init__.py", "pod.py", "progress.py", "ranks.py", "result.py", "torchrun.py")
_PROTOCOL = (
    *("__init__.py", "actions.py", "agent_report.py", "checkpoint_files.py", "cluster.py", "dlrover.py"),
    *(
        "failure_texts.py",
        "grouping.py",
        "intervals.py",
        "leases.py",
        "names.py",
        "phases.py",
    ),
    *("progress_record.py", "ranges.py", "release.py", "shard_set.py", "stack_offer.py", "texts.py"),
    *("trace.py", "wire.py", "xids.py"),
)
"""Modules of `crds` that the agent shares with the controller; they need only the standard library."""
_CLIENT = ("__init__.py", "connection.py", "errors.py")
"""Modules of `controller` that the agent needs."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the zip, so that equal sources make equal bytes."""

_CHECKED = (3).to_bytes(4, "little")
"""Flags of bytecode that is only valid for a source with the stored hash (PEP 552)."""
_MARSHAL_WITHOUT_REFERENCES = 2
"""Marshal version whose output is independent of reference counts, so that equal sources make equal bytes."""

_LAUNCHER = """\
#!/bin/sh
# Starts the injected agent of dlr with this image's own Python; DLR_PYTHON names another one.
home=${{0%/bin/*}}
set -- {command}"$@"
mark=/dev/null
case "$1" in
run | exec | torchrun | dlrover-run)
    # A shell or a wrapper in front of this process may hide how it ends (docs/failures.md).
    if [ $$ -ne 1 ] && [ -w "$DLR_TERMINATION_LOG" ]; then
        mark=$DLR_TERMINATION_LOG
        echo "dlr: ${{0##*/}} {has_begun}" >>"$mark"
    fi
    ;;
esac
refuse() {{
    echo "dlr: $2" >&2
    echo "dlr: $2" >>"$mark"
    exit "$1"
}}
for python in "$DLR_PYTHON" python3 python ""; do
    if command -v "$python" >/dev/null 2>&1; then
        break
    fi
done
if [ -z "$python" ]; then
    refuse 127 "this image has no python3 on its PATH; name its Python (3.10 or newer) in DLR_PYTHON"
fi
if [ "$python" != "${{DLR_PYTHON:-$python}}" ]; then
    echo "dlr: there is no $DLR_PYTHON, so $(command -v "$python") runs the agent" >&2
fi
sum=$({{ sha256sum <"$home/{zip}" || "$python" -I -c '{hashing}' <"$home/{zip}"; }} 2>/dev/null)
sum=${{sum%% *}}
if [ "$sum" != {sha256} ]; then
    refuse 69 "$home/{zip} is not the file that this launcher was built with: \
its SHA-256 is ${{sum:-unknown}} and not {sha256}; \
have this node pull the agent's image again, or build that image again"
fi
case ":$PYTHONPATH:" in
*":$home/{zip}:"*) ;;
*) PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}$home/{zip} ;;
esac
export PYTHONPATH
exec "$python" "$home/{zip}" "$@"
"""

_HASHING = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
"""Code that the launchers run if the image has no `sha256sum`."""

_MAIN = f"""\
import os
import sys

if sys.version_info < (3, 10):
    why = "dlr: Python 3.10 or newer is needed, and %s is %d.%d; name another one in DLR_PYTHON\\n" % (
        sys.executable, sys.version_info[0], sys.version_info[1]
    )
    sys.stderr.write(why)
    message = os.environ.get("{ENV_TERMINATION_LOG}", "")
    if os.path.isfile(message) and os.access(message, os.W_OK):
        with open(message, "a") as log:
            log.write(why)
    sys.exit(69)

from dlr.pod import main

sys.exit(main(sys.argv[1:]))
"""


def build(folder: Path) -> str:
    """Write the zip and the launchers into a folder, which is created; each file is replaced atomically.

    Returns:
        the zip's SHA-256 in hexadecimal.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    archive = _zipped()
    sha256 = hashlib.sha256(archive).hexdigest()
    with _written(folder / AGENT_ZIP, 0o644) as scratch:
        scratch.write_bytes(archive)
    for name, command in LAUNCHERS.items():
        with _written(folder / "bin" / name, 0o755) as scratch:
            scratch.write_text(
                _LAUNCHER.format(
                    zip=AGENT_ZIP,
                    command=f"{command} " if command else "",
                    sha256=sha256,
                    hashing=_HASHING,
                    has_begun=HAS_BEGUN,
                )
            )
    return sha256


@contextmanager
def _written(path: Path, mode: int) -> Iterator[Path]:
    """Yield a scratch file, which replaces the file at the path at the end of the block."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield scratch
        scratch.chmod(mode)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)  # left by a full disk, or an interrupt


def _zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(contents().items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            if name.endswith(".py") and (bytecode := _bytecode(name, content)):
                archive.writestr(zipfile.ZipInfo(f"{name}c", _EPOCH), bytecode, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _bytecode(path: str, source: str) -> bytes | None:
    """Compile a module with this Python. Its frames name the file by its path from the zip's folder on.

    Returns:
        None if the marshal version cannot encode it, such as a constant slice since Python 3.14.
    """
    code = compile(source, f"{AGENT_ZIP}/{path}", "exec", dont_inherit=True, optimize=0)
    header = MAGIC_NUMBER + _CHECKED + source_hash(source.encode())
    try:
        return header + marshal.dumps(code, _MARSHAL_WITHOUT_REFERENCES)
    except ValueError:
        return None


def contents() -> dict[str, str]:
    """Return the files of the zip, by their path in it."""
    sources = dict(_sources())
    modules = {module_name(path) for path in sources if not path.startswith("dlr/")}
    inner = INTERNAL.replace(".", "/")
    moved = {}
    for path, source in sources.items():
        place = path if path.startswith("dlr/") else f"{inner}/{path}"
        moved[place] = relocated(source, PARTS | VENDORED.keys(), modules, path)
    return {"__main__.py": _MAIN, f"{inner}/__init__.py": "", **moved, **_distribution_info()}


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the path below its root, and the source, of each module of this installation."""
    for package, names in ((dlr, _SDK), (crds, _PROTOCOL), (controller, _CLIENT)):
        for name in names:
            yield f"{_own_name(package.__name__)}/{name}", (_folder(package.__name__) / name).read_text()
    for package_name in ("as_dlrover", "checkpoint", "data", "integrations", "replicas", "shards", "tasks"):
        yield from _tree(f"dlr/{package_name}", _folder(dlr.__name__) / package_name)
    yield "healthcheck/__init__.py", (_folder(healthcheck.__name__) / "__init__.py").read_text()
    yield from _tree("healthcheck/probes", _folder(healthcheck.__name__) / "probes")
    yield from _tree("agent", _folder(agent.__name__))
    for name in VENDORED:
        module = importlib.import_module(name)
        assert module.__file__ is not None
        path = Path(module.__file__)
        if path.name == "__init__.py":
            yield from _tree(name, path.parent)
        else:
            yield f"{name}.py", path.read_text()


def _tree(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.py"):
        below = path.relative_to(folder).as_posix()
        if not below.startswith(_NOT_VENDORED):
            yield f"{name}/{below}", path.read_text()


def _folder(package: str) -> Path:
    file = importlib.import_module(package).__file__
    assert file is not None
    return Path(file).parent


def _own_name(package: str) -> str:
    """Return a package's name in the repository, also in an installed wheel."""
    return package.removeprefix(f"{INTERNAL}.")


def _distribution_info() -> Mapping[str, str]:
    """Return the zip's metadata: the entry point for torchrun, and the licences of vendored packages."""
    folder = f"{DISTRIBUTION.replace('-', '_')}-{VERSION}.dist-info"
    found = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {VERSION}\n",
        f"{folder}/entry_points.txt": "[torchrun.handlers]\ndlr = dlr.torchrun:get_handler\n",
    }
    for module, distribution in VENDORED.items():
        for file in metadata.files(distribution) or ():
            if "licen" in file.name.lower() or "copying" in file.name.lower():
                found[f"{folder}/licenses/{module}/{file.name}"] = file.read_text()
    return found
