"""Admits a request with the token, from a page of this server's own, under a name of this machine's.

The page shows logs, and a port on loopback can be reached by other programs of this machine and by every web
page that its browser opens. The token keeps out who was not given the address. A name in `Host` that is not
loopback's is a page of somebody else's whose name was made to lead here (DNS rebinding). An `Origin` that is
not this server's is a page that asks across sites.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer. The token is part of the address: it goes nowhere as a referrer, and into no cache."""


def why_refused(host: str | None, origin: str | None, given: str, token: str) -> str | None:
    """A sentence for who asks; None if they may.

    Args:
        host: the header, with any port: whoever forwards a port by ssh has another one.
        origin: the header; browsers leave it out where a page of the same site asks.
        given: the token of the address.
    """
    name = _hostname(f"//{host}") if host else None
    if name not in LOOPBACK_NAMES:
        return "This server answers only under a name of the machine that it runs on: localhost or 127.0.0.1."
    if origin is not None and origin != f"http://{host}":
        return "This server answers only pages of its own."
    if not hmac.compare_digest(given.encode(), token.encode()):
        return (
            "The token in this address is not this server's: open the address that `dlr dashboard` printed."
        )
    return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
