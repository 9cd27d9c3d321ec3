"""The reflector's machine, fed with server answers; no server, no waiting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Gone, Invalid, NotFound, Unavailable
from controller.salvage import TOO_DEEP, Unreadable
from controller.store import Store
from controller.watch.reflector import (
    Applied,
    Broke,
    Deleted,
    Empty,
    Ended,
    Failed,
    FetchPage,
    Idled,
    Listed,
    Opened,
    OpenWatch,
    Page,
    Paging,
    ReadStream,
    Replaced,
    Skipped,
    Streamed,
    Watching,
    step,
    want,
)


def obj(name, version):
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}}


def event(type, body):
    return Streamed({"type": type, "object": body})


def status(code, **more):
    return {"kind": "Status", "code": code, "reason": "Expired" if code == 410 else "x", **more}


GONE = Gone(410, "Expired", "too old resource version")


def test_lists_in_pages_then_watches_from_the_list():
    state = Empty()
    assert want(state) == FetchPage(None, paged=True)
    events, state = step(state, Page((obj("a", 1),), "9", "next"))
    assert events == [] and want(state) == FetchPage("next", paged=True)
    events, state = step(state, Page((obj("b", 2),), "9"))
    assert events == [Replaced((obj("a", 1), obj("b", 2)))]
    assert want(state) == OpenWatch("9")
    assert step(state, Opened()) == ([], Watching("9"))
    assert want(Watching("9")) == ReadStream()


def test_events_and_bookmarks_move_the_version_on():
    state = Watching("9")
    events, state = step(state, event("ADDED", obj("a", 10)))
    assert (events, state) == ([Applied(obj("a", 10))], Watching("10"))
    events, state = step(state, event("DELETED", obj("a", 11)))
    assert (events, state) == ([Deleted(obj("a", 11))], Watching("11"))
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "20"}, "spec": {"containers": None}}
    assert step(state, event("BOOKMARK", bookmark)) == ([], Watching("20"))


@pytest.mark.parametrize("answer", [Ended(), Idled()])
def test_a_stream_that_ends_or_falls_silent_goes_on_from_the_last_version(answer):
    assert step(Watching("20"), answer) == ([], Listed("20"))


def test_a_broken_stream_is_told_and_goes_on_from_the_last_version():
    error = Unavailable("reset")
    assert step(Watching("20"), Broke(error)) == ([Failed(error)], Listed("20"))


def test_410_inside_the_stream_lists_again():
    assert step(Watching("5"), event("ERROR", status(410))) == ([], Empty())


def test_410_on_opening_lists_again():
    assert step(Listed("5"), Broke(GONE)) == ([], Empty())


def test_an_expired_page_token_lists_again_in_one_piece():
    events, state = step(Paging((obj("a", 1),), "token"), Broke(GONE))
    assert events == [] and want(state) == FetchPage(None, paged=False)


def test_410_for_the_whole_list_is_a_failure_not_a_loop():
    events, state = step(Empty(paged=False), Broke(GONE))
    assert events == [Failed(GONE)] and state == Empty(paged=False)


def test_other_errors_inside_the_stream_are_told_and_the_watch_goes_on():
    events, state = step(Watching("5"), event("ERROR", status(500, message="boom")))
    assert isinstance(events[0], Failed) and "boom" in str(events[0].error)
    assert state == Listed("5")


def test_a_failed_page_is_asked_for_again_and_what_was_read_is_kept():
    state = Paging((obj("a", 1),), "token")
    assert step(state, Broke(Unavailable("x")))[1] == state


def test_a_page_that_is_refused_leads_to_a_new_list_which_may_ask_by_another_token():
    error = Invalid(400, "BadRequest", "continue key is not valid")
    assert step(Paging((obj("a", 1),), "token"), Broke(error)) == ([Failed(error)], Empty())


def test_a_crd_that_vanished_leads_to_a_new_list():
    error = NotFound(404, "NotFound", "no such resource")
    assert step(Listed("5"), Broke(error)) == ([Failed(error)], Empty())


def test_a_server_restored_to_an_older_state_is_listed_anew():
    error = Unavailable("Timeout: Too large resource version: 90, current: 12", status=504)
    assert step(Listed("90"), Broke(error)) == ([Failed(error)], Empty())


@pytest.mark.parametrize("odd", [{"type": "ADDED"}, {"type": "NEWS", "object": {}}, {"object": {}}, {}])
def test_a_line_that_is_no_event_of_an_object_is_a_failure(odd):
    events, state = step(Watching("5"), Streamed(odd))
    assert isinstance(events[0], Failed) and state == Listed("5")


@pytest.mark.parametrize("type", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize(
    "metadata",
    [
        None,
        5,
        [],
        {},
        {"name": 5},
        {"name": "a", "labels": {"x": 1}},
        {"name": "a", "ownerReferences": ["x"]},
    ],
)
def test_an_object_with_strange_metadata_is_skipped_and_the_watch_goes_on(type, metadata):
    events, state = step(Watching("5"), event(type, {"metadata": metadata}))
    assert [each.found.has_name for each in events] == [False] and state == Watching("5")


def test_an_object_that_cannot_be_read_moves_the_version_on():
    found = Unreadable(obj("a", 7), TOO_DEEP)
    for type_, told in (("MODIFIED", Skipped(found)), ("DELETED", Deleted(found.obj))):
        streamed = Streamed({"type": type_, "object": obj("a", 7)}, is_cut=True)
        assert step(Watching("5"), streamed) == ([told], Watching("7"))


class ModelServer:
    """A collection with history, which forgets, ends streams and breaks as it is told."""

    def __init__(self):
        self.version = 1
        self.objects = {}
        self.history = []
        self.forgotten = 0
        self.stream = None
        self.snapshots = {}

    def mutate(self, kind, name):
        if kind == "delete" and name not in self.objects:
            return
        self.version += 1
        body = obj(name, self.version)
        if kind == "delete":
            del self.objects[name]
            self.history.append((self.version, {"type": "DELETED", "object": body}))
        else:
            type = "MODIFIED" if name in self.objects else "ADDED"
            self.objects[name] = body
            self.history.append((self.version, {"type": type, "object": body}))

    def compact(self):
        self.forgotten = self.version
        self.snapshots.clear()

    def answer(self, ask, fault):
        if fault == "break":
            self.stream = None
            return Broke(Unavailable("broken"))
        match ask:
            case FetchPage(None, paged):
                items = sorted(self.objects.items())
                if not paged or len(items) <= 2:
                    return Page(tuple(body for _, body in items), str(self.version))
                token = f"{self.version}/2"
                self.snapshots[self.version] = items
                return Page(tuple(body for _, body in items[:2]), str(self.version), token)
            case FetchPage(token, _):
                version, start = map(int, token.split("/"))
                if version not in self.snapshots:
                    return Broke(GONE)
                items = self.snapshots[version]
                rest = f"{version}/{start + 2}" if start + 2 < len(items) else None
                return Page(tuple(body for _, body in items[start : start + 2]), str(version), rest)
            case OpenWatch(version):
                if int(version) < self.forgotten:
                    return Broke(GONE)
                self.stream = int(version)
                return Opened()
            case ReadStream():
                return self._read(fault)
        raise AssertionError(ask)

    def _read(self, fault):
        if fault == "end":
            return Ended()
        if self.stream < self.forgotten:
            return Streamed({"type": "ERROR", "object": status(410)})
        for version, change in self.history:
            if version > self.stream:
                self.stream = version
                return Streamed(change)
        if fault == "bookmark":
            self.stream = self.version
            bookmark = {"metadata": {"resourceVersion": str(self.version)}}
            return Streamed({"type": "BOOKMARK", "object": bookmark})
        return Idled()


def take(store, told, events):
    """As an informer does; `told` is the world as a handler would know it."""
    for event in events:
        match event:
            case Replaced(items):
                changes = [change for change in store.replace_stepwise(items) if change is not None]
            case Applied(body):
                changes = [store.apply(body)]
            case Deleted(body):
                change = store.delete(body)
                changes = [change] if change else []
            case _:
                changes = []
        for change in changes:
            name = change.current["metadata"]["name"]
            assert (change.old is None) == (name not in told)
            if change.new is None:
                del told[name]
            else:
                told[name] = change.new


MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "delete"]), st.sampled_from("abcdefg")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("ask"), st.sampled_from([None, None, None, "break", "end", "bookmark"])),
    ),
    max_size=120,
)


@given(MOVES)
@settings(max_examples=300, deadline=None)
def test_store_and_handlers_end_up_with_what_the_server_has_whatever_happens(moves):
    server, store, told, state = ModelServer(), Store(), {}, Empty()
    calm = [("ask", None)] * 150
    for move in moves + calm:
        match move:
            case ("compact",):
                server.compact()
            case ("ask", fault):
                events, state = step(state, server.answer(want(state), fault))
                take(store, told, events)
            case (kind, name):
                server.mutate(kind, name)
    assert {o["metadata"]["name"]: o for o in store.list()} == server.objects == told
