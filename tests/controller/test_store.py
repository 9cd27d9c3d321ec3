from hypothesis import given
from hypothesis import strategies as st

from controller.store import Change, Store, key_of


def obj(name, version="1", namespace="ns", **labels):
    metadata = {"name": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": {**metadata, "namespace": namespace} if namespace else metadata}


def by_job(o):
    job = o["metadata"]["labels"].get("job")
    return [job] if job else []


def test_replacing_tells_only_what_changed_and_what_is_gone():
    store = Store()
    same, changed, gone = obj("same"), obj("changed"), obj("gone")
    list(store.replace_stepwise([same, changed, gone]))
    newer, fresh = obj("changed", 2), obj("fresh")
    changes = store.replace_stepwise([obj("same"), newer, fresh])
    assert [change for change in changes if change is not None] == [
        Change(gone, None),
        Change(changed, newer),
        Change(None, fresh),
    ]


def test_what_we_make_while_a_list_is_taken_in_stays():
    store = Store()
    store.apply(obj("gone"))
    steps = store.replace_stepwise([obj("a"), obj("b")])
    assert next(steps) is None
    store.apply(obj("ours", 7))
    list(steps)
    assert sorted(each["metadata"]["name"] for each in store.list()) == ["a", "b", "ours"]


def test_a_deletion_carries_the_last_state_and_the_unknown_is_nobodys_business():
    store = Store()
    store.apply(obj("a", 1))
    last = obj("a", 5)
    change = store.delete(last)
    assert change == Change(last, None) and change.current is last
    assert store.delete(last) is None


NAMES = st.sampled_from(["a", "b", "c", "d"])
JOBS = st.sampled_from(["x", "y", None])
OBJECTS = st.builds(lambda n, j, v: obj(n, v, **({"job": j} if j else {})), NAMES, JOBS, st.integers(1, 99))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), OBJECTS),
        st.tuples(st.just("delete"), OBJECTS),
        st.tuples(st.just("replace_stepwise"), st.lists(OBJECTS, max_size=5)),
    ),
    max_size=30,
)


@given(MOVES)
def test_indexes_always_agree_with_the_content(moves):
    store = Store()
    store.add_index("job", by_job)
    for move, argument in moves:
        done = getattr(store, move)(argument)
        if move == "replace_stepwise":
            list(done)
        for job in ("x", "y"):
            found = {key_of(o) for o in store.by_index("job", job)}
            assert found == {key_of(o) for o in store.list() if job in by_job(o)}
        assert {key_of(o) for o in store.list("ns")} == {key_of(o) for o in store.list()}


def with_uid(name, uid, version="1"):
    made = obj(name, version)
    made["metadata"]["uid"] = uid
    return made


def test_what_is_remembered_of_an_object_goes_with_it():
    store = Store()
    memory = store.memory()
    for gone in (
        lambda: store.delete(with_uid("a", "first", 9)),
        lambda: list(store.replace_stepwise([])),
        lambda: store.apply(with_uid("a", "second", 9)),
    ):
        list(store.replace_stepwise([with_uid("a", "first")]))
        assert memory.put("first", 1) == 1 and memory.get("first") == 1
        store.apply(with_uid("a", "first", 2))
        assert memory.get("first") == 1, "another version is the same object"
        gone()
        assert memory.get("first") is None
        assert memory.put("first", 2) == 2 and len(memory) == 0, "nor does a late word of it stay"
