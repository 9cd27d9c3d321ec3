"""Opens the dashboard in a browser, and keeps its token out of every process's arguments.

All users of a machine can read these (`/proc/*/cmdline`). So the browser gets the path of a page that leads
on to the dashboard, and that this user alone can read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from dlr.dashboard.feed import in_thread

_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>dlr dashboard</title>
<a href="{address}">The dashboard</a>
"""


async def open_in_browser(address: str, opened: asyncio.Event) -> None:
    """Open the dashboard in the user's browser, or warn on standard error that this cannot be done.

    Returns when the dashboard was opened, or will not be.

    Args:
        opened: set by the server when a browser has loaded the page.
    """
    try:
        with _leading_to(address) as page:
            browser = asyncio.ensure_future(in_thread(lambda: webbrowser.open(page.as_uri())))
            # A browser in the terminal, such as lynx, returns only when it is left.
            waiting = [browser, asyncio.ensure_future(opened.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if browser.done() and not browser.result():
                _warn("no browser was found")
            else:
                await opened.wait()
    except OSError as error:
        _warn(f"{error.filename or 'its page'} cannot be written: {error.strerror}")
    except RuntimeError as error:  # a user without a home folder
        _warn(f"the browser's page cannot be written: {error}")


def _warn(reason: str) -> None:
    print(f"dlr: warning: {reason}; open the address above in a browser.", file=sys.stderr)


@contextmanager
def _leading_to(address: str) -> Iterator[Path]:
    """Write a page in a folder of its own, both for this user alone; both are removed at the end.

    They lie in the home folder, under a name without a dot: a browser from a snap may read nothing else.

    Raises:
        OSError: they cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="dlr-dashboard-", dir=Path.home()) as folder:  # of mode 0700
        page = Path(folder) / "open.html"
        descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(address=escape(address)))
        yield page
