"""Caches of the kinds that the controller watches, whose stores a test fills itself."""

from __future__ import annotations

from typing import Any

from controller.cache import Cache
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.tools import Tools
from reconcilers.shapes import SHAPES


def tools_of(cache: Cache, client: Any = None, recorder: Any = None, **more: Any) -> Tools:
    """Tools over such a cache; what is not given is not used."""
    return Tools(client, cache, recorder, **{"contact": None, "clock": Clock()} | more)


def shaped_cache(client: Any = None) -> Cache:
    """A cache on a clock that stands; without a client nothing is asked of an API server."""
    cache = Cache(client, monotonic=lambda: 0.0)
    cache.keep_only(SHAPES)
    return cache
