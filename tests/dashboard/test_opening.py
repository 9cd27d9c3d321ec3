"""`dlr dashboard --open`, as a program, with a browser that writes down what it was given and what it found."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.scripted import GROUP_PATH, ScriptedServer, kubeconfig_for, listing
from tests.cli.troubled import troubled_job

pytestmark = pytest.mark.real

JSON = dict[str, Any]

DLR = Path(sys.executable).with_name("dlr")
WAIT_SECONDS = 300.0

BROWSER = """
import html, json, pathlib, re, sys, time, urllib.parse, urllib.request

follows, notes, address = sys.argv[1:]
page = pathlib.Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path))
target = html.unescape(re.search('content="0; url=([^"]*)"', page.read_text())[1])
seen = []
for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        seen.append(each.read_bytes().decode(errors="replace"))
    except OSError:
        pass
found = {
    "address": address, "target": target, "arguments": seen,
    "modes": [page.stat().st_mode, page.parent.stat().st_mode], "page": str(page), "title": None,
}
if follows != "does not follow":
    with urllib.request.urlopen(target, timeout=300) as answer:
        found["title"] = re.search("<title>(.*)</title>", answer.read().decode())[1]
scratch = pathlib.Path(notes + ".part")
scratch.write_text(json.dumps(found))
scratch.rename(notes)
while follows == "stays" and not pathlib.Path(notes).with_name("leave").exists():
    time.sleep(0.02)
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def dashboard(folder: Path, *, browser: str, home: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """`dlr dashboard digits --open`; the folder is its home, if no other is named."""
    server = ScriptedServer()
    server.answers[f"GET {GROUP_PATH}/default/elasticjobs"] = listing(troubled_job())
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig_for(server.url)))
    environment = {
        "PATH": os.defpath,
        "HOME": str(home or folder),
        "KUBECONFIG": str(folder / "kubeconfig"),
        "BROWSER": browser,
    }
    process = subprocess.Popen(
        [DLR, "dashboard", "digits", "--open"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        server.close()


def fake_browser(folder: Path, follows: str) -> str:
    (folder / "browser.py").write_text(BROWSER)
    words = [sys.executable, str(folder / "browser.py"), follows, str(folder / "notes.json")]
    return f"{shlex.join(words)} %s"


def read_notes(folder: Path) -> JSON:
    until((folder / "notes.json").exists)
    notes: JSON = json.loads((folder / "notes.json").read_text())
    return notes


def test_the_token_is_in_no_process_s_arguments_and_in_no_file_of_others(tmp_path: Path) -> None:
    with dashboard(tmp_path, browser=fake_browser(tmp_path, "follows")) as process:
        notes = read_notes(tmp_path)
        assert process.stdout is not None
        printed = process.stdout.readline().strip()
        assert notes["target"] == printed and printed.endswith("/#/job/default/digits")
        (token,) = re.findall(r"127\.0\.0\.1:\d+/([\w-]{32})/", printed)
        assert any("browser.py" in each for each in notes["arguments"])
        assert any("dashboard" in each and "--open" in each for each in notes["arguments"])
        assert not [each for each in notes["arguments"] if token in each]
        assert notes["title"] == "dlr", "the page leads to the dashboard"
        assert [stat.S_IMODE(mode) for mode in notes["modes"]] == [0o600, 0o700]
        page = Path(notes["page"])
        assert page.is_relative_to(tmp_path) and not any(part.startswith(".") for part in page.parts[1:])
        until(lambda: not page.parent.exists())  # it was followed
        assert process.poll() is None


def test_ctrl_c_removes_a_page_that_nobody_followed(tmp_path: Path) -> None:
    with dashboard(tmp_path, browser=fake_browser(tmp_path, "does not follow")) as process:
        page = Path(read_notes(tmp_path)["page"])
        assert page.exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
        assert not page.parent.exists()


def test_a_browser_that_stays_in_the_terminal_is_answered_meanwhile(tmp_path: Path) -> None:
    """webbrowser waits until such a one is left."""
    with dashboard(tmp_path, browser=fake_browser(tmp_path, "stays")) as process:
        try:
            page = Path(read_notes(tmp_path)["page"])
            until(lambda: not page.parent.exists())
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 130
        finally:
            (tmp_path / "leave").touch()


@pytest.mark.parametrize(
    ("home", "reason"),
    [("", "no browser was found"), ("nowhere", "cannot be written: No such file or directory")],
)
def test_one_sentence_gives_the_reason_why_no_browser_is_opened(
    tmp_path: Path, home: str, reason: str
) -> None:
    with dashboard(tmp_path, browser="/no/such/browser %s", home=tmp_path / home) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("dlr: warning: ")
        assert line.endswith(f"{reason}; open the address above in a browser.\n")
        assert process.poll() is None
