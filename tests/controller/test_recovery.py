"""An informer fed with server answers; no server, no waiting."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Gone, Invalid, NotFound, PageTooLarge, SilentWatch, TimedOut, Unavailable
from controller.resources import PODS
from controller.salvage import TOO_DEEP
from controller.shape import WHOLE
from controller.watch.informer import Informer


def obj(name, version):
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}}


def event(type, body):
    return {"type": type, "object": body}


def status(code, **more):
    return {"kind": "Status", "code": code, "reason": "Expired" if code == 410 else "x", **more}


def page(*items, version="9", token=None):
    return {"items": [*items], "metadata": {"resourceVersion": version, "continue": token}}


GONE = Gone(410, "Expired", "too old resource version")
OPENED, ENDED, SILENT = "opened", "ended", SilentWatch("silent")


class Script:
    """A client that gives one answer to each ask; an exception is raised."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asks = []

    def answer(self, ask):
        self.asks.append(ask)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def list_page(self, *_, page_size, continue_token, **__):
        return self.answer(("list", continue_token, page_size is not None))

    @asynccontextmanager
    async def watch(self, *_, resource_version, **__):
        assert self.answer(("watch", resource_version)) is OPENED
        yield self

    async def lines(self, idle_timeout_seconds):
        answer = self.answer("read")
        return None if answer is ENDED else [orjson.dumps(each) for each in answer]


async def asked(*answers):
    """The informer after these answers, and what it asked; the last ask is one that has no answer any more."""
    client = Script(*answers, StopAsyncIteration())
    informer = Informer(client, PODS, WHOLE)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        while True:
            await informer.advance()
    return informer, client.asks


def names(informer):
    return sorted(each["metadata"]["name"] for each in informer.store.list())


@pytest.mark.parametrize("answer", [ENDED, SILENT, Unavailable("reset")])
async def test_a_stream_that_ends_falls_silent_or_breaks_goes_on_from_the_last_version(answer):
    informer, asks = await asked(page(version="20"), OPENED, answer)
    assert asks[-1] == ("watch", "20")
    assert str(informer.last_error) == (
        "reset" if isinstance(answer, Unavailable) and answer is not SILENT else "None"
    )


async def test_410_for_the_whole_list_is_a_failure_not_a_loop():
    informer, asks = await asked(page(token="token"), GONE, GONE)
    assert asks[-1] == ("list", None, False) and informer.last_error is GONE


async def test_other_errors_inside_the_stream_are_told_and_the_watch_goes_on():
    informer, asks = await asked(page(), OPENED, [event("ERROR", status(500, message="boom"))])
    assert "boom" in str(informer.last_error) and asks[-1] == ("watch", "9")


async def test_a_page_that_is_refused_leads_to_a_new_list_which_may_ask_by_another_token():
    error = Invalid(400, "BadRequest", "continue key is not valid")
    informer, asks = await asked(page(obj("a", 1), token="next"), error)
    assert asks[-1] == ("list", None, True) and informer.last_error is error


@pytest.mark.parametrize("error", [TimedOut("late"), PageTooLarge(2, 1)])
async def test_a_list_in_one_piece_that_is_too_much_is_asked_for_in_pages_again(error):
    _, asks = await asked(page(token="next"), GONE, error)
    assert asks[-2:] == [("list", None, False), ("list", None, True)]


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, "NotFound", "no such resource"),
        Unavailable("Timeout: Too large resource version: 90, current: 12", status=504),
    ],
    ids=["the CRD vanished", "the server was restored to an older state"],
)
async def test_a_watch_that_can_never_go_on_leads_to_a_new_list(error):
    informer, asks = await asked(page(), error)
    assert asks[-1] == ("list", None, True) and informer.last_error is error


@pytest.mark.parametrize(("type", "unreadable"), [("MODIFIED", [TOO_DEEP]), ("DELETED", [])])
async def test_an_object_that_cannot_be_read_moves_the_version_on(threadless, type, unreadable):
    class TooDeep(Script):
        async def lines(self, idle_timeout_seconds):
            text = orjson.dumps({"type": type, "object": {**obj("a", 7), "spec": {"x": "deep"}}})
            answer = self.answer("read")
            return None if answer is ENDED else [text.replace(b'"deep"', b"[" * 2000 + b"]" * 2000)]

    client = TooDeep(page(obj("a", 5)), OPENED, "deep", ENDED, StopAsyncIteration())
    informer = Informer(client, PODS, WHOLE)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        while True:
            await informer.advance()
    assert client.asks[-1] == ("watch", "7") and names(informer) == []
    assert [found.reason for found in informer.intake.unreadable.values()] == unreadable


class ModelServer:
    """A collection with history, which forgets, ends streams and breaks as it is told. It is its own client."""

    def __init__(self):
        self.version = 1
        self.objects = {}
        self.history = []
        self.forgotten = 0
        self.stream = None
        self.snapshots = {}
        self.fault = None

    def mutate(self, kind, name):
        if kind == "delete" and name not in self.objects:
            return
        self.version += 1
        body = obj(name, self.version)
        if kind == "delete":
            del self.objects[name]
            self.history.append((self.version, event("DELETED", body)))
        else:
            type = "MODIFIED" if name in self.objects else "ADDED"
            self.objects[name] = body
            self.history.append((self.version, event(type, body)))

    def compact(self):
        self.forgotten = self.version
        self.snapshots.clear()

    def _may_break(self):
        if self.fault == "break":
            raise Unavailable("broken")

    async def list_page(self, *_, page_size, continue_token, **__):
        self._may_break()
        version, start = map(int, continue_token.split("/")) if continue_token else (self.version, 0)
        if not continue_token:
            self.snapshots[version] = [body for _, body in sorted(self.objects.items())]
        if version not in self.snapshots:
            raise GONE
        items = self.snapshots[version]
        end = start + 2 if page_size is not None else len(items)
        token = f"{version}/{end}" if end < len(items) else None
        return page(
            *(orjson.loads(orjson.dumps(o)) for o in items[start:end]), version=str(version), token=token
        )

    @asynccontextmanager
    async def watch(self, *_, resource_version, **__):
        self._may_break()
        if int(resource_version) < self.forgotten:
            raise GONE
        self.stream = int(resource_version)
        yield self

    async def lines(self, idle_timeout_seconds):
        self._may_break()
        if self.fault == "end":
            return None
        if self.stream < self.forgotten:
            return [orjson.dumps(event("ERROR", status(410)))]
        for version, change in self.history:
            if version > self.stream:
                self.stream = version
                return [orjson.dumps(change)]
        if self.fault == "bookmark":
            self.stream = self.version
            return [orjson.dumps(event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))]
        raise SILENT


MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "write", "delete"]), st.sampled_from("abcdefg")),
        st.tuples(st.just("answer"), st.integers(0, 5)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("ask"), st.sampled_from([None, None, None, "break", "end", "bookmark"])),
    ),
    max_size=120,
)


async def read_to_the_end(server, informer):
    for _ in range(150):
        if server.stream == server.version:
            return
        await informer.advance()


@given(MOVES)
@settings(max_examples=300, deadline=None)
def test_store_and_handlers_end_up_with_what_the_server_has_whatever_happens(moves):
    """Nothing goes back, and nothing that is gone comes back, however late answers to own writes are."""
    server, told, gone, answers = ModelServer(), {}, {}, []

    def hear(change):
        name, version = change.current["metadata"]["name"], int(change.current["metadata"]["resourceVersion"])
        assert (change.old is None) == (name not in told)
        assert version >= int(told.get(name, 0)) and (change.new is None or version > gone.get(name, 0))
        if change.new is None:
            del told[name]
            gone[name] = version
        else:
            told[name] = str(version)

    async def scenario():
        informer = Informer(server, PODS, WHOLE)
        informer.intake.add_handler(hear)
        for move in moves:
            match move:
                case ("compact",):
                    server.compact()
                case ("ask", fault):
                    server.fault = fault
                    await informer.advance()
                case ("answer", which):
                    if which < len(answers):
                        informer.note_write(answers.pop(which))
                case (kind, name):
                    server.mutate(kind, name)
                    if kind == "write":
                        answers.append(server.objects[name])
        server.fault = None
        await read_to_the_end(server, informer)
        for answer in answers:
            informer.note_write(answer)
        return informer.store.list()

    stored = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in asyncio.run(scenario())}
    there = {name: o["metadata"]["resourceVersion"] for name, o in server.objects.items()}
    assert stored == there == told
