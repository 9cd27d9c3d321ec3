"""A fake API server for a Lease and Pods on a network that hangs, loses and delays, in virtual time.

It speaks the part of `AsyncClient` that the elector uses. Every request has a fate: how long until the server
acts on it, how long until the answer is back, or that one of both never happens. What the server does it
does even if the caller has given up meanwhile, as a real one would.
"""

import asyncio
import copy
from dataclasses import dataclass
from math import inf

from controller.errors import AlreadyExists, Conflict, NotFound
from controller.resources import LEASES


@dataclass(frozen=True)
class Fate:
    there_seconds: float = 0.01
    back_seconds: float = 0.01


PROMPT = Fate()
LOST = Fate(inf, inf)
ANSWER_LOST = Fate(0.01, inf)


class LeaseApi:
    def __init__(self):
        self.lease = None
        self.pods = {}
        self.version = 0
        self.writes = []

    def read(self):
        if self.lease is None:
            raise NotFound(404, "NotFound", "no lease")
        return copy.deepcopy(self.lease)

    def read_pod(self, name):
        if name not in self.pods:
            raise NotFound(404, "NotFound", "no pod")
        return copy.deepcopy(self.pods[name])

    def create(self, lease):
        if self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        return self._write(lease)

    def replace(self, lease):
        if self.lease is None:
            raise NotFound(404, "NotFound", "no lease")
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "changed")
        return self._write(lease)

    def put_holder(self, holder):
        lease = self.read()
        lease["spec"]["holderIdentity"] = holder
        self.replace(lease)

    def delete(self):
        self.lease = None

    def _write(self, lease):
        self.version += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append(self.lease["spec"])
        return copy.deepcopy(self.lease)


class LeaseClient:
    """One candidate's way to the server; `next_fate` decides over each request."""

    def __init__(self, api, next_fate=lambda: PROMPT):
        self._api = api
        self._next_fate = next_fate
        self._on_the_way = set()

    async def get(self, resource, name, namespace=None):
        act = self._api.read if resource is LEASES else lambda: self._api.read_pod(name)
        return await self._send(act)

    async def create(self, resource, lease):
        return await self._send(lambda: self._api.create(lease))

    async def replace(self, resource, lease):
        return await self._send(lambda: self._api.replace(lease))

    async def _send(self, act):
        fate = self._next_fate()
        answer = asyncio.get_running_loop().create_future()
        request = asyncio.create_task(self._travel(fate, act, answer))
        self._on_the_way.add(request)
        request.add_done_callback(self._on_the_way.discard)
        return await answer

    @staticmethod
    async def _travel(fate, act, answer):
        await asyncio.sleep(min(fate.there_seconds, 1e6))
        try:
            outcome, failed = act(), False
        except Exception as error:
            outcome, failed = error, True
        await asyncio.sleep(min(fate.back_seconds, 1e6))
        if not answer.done():
            (answer.set_exception if failed else answer.set_result)(outcome)
