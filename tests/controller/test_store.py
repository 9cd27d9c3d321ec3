import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.store import Change, Store, key_of


def obj(name, version="1", namespace="ns", **labels):
    metadata = {"name": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": {**metadata, "namespace": namespace} if namespace else metadata}


def by_job(o):
    job = o["metadata"]["labels"].get("job")
    return [job] if job else []


def test_objects_are_found_by_name_namespace_and_index():
    store = Store()
    store.add_index("job", by_job)
    a, b = obj("a", job="j"), obj("b", namespace="other", job="j")
    store.apply(a)
    store.apply(b)
    assert store.get("ns", "a") is a
    assert store.list("other") == [b]
    assert store.by_index("job", "j") == [a, b]
    assert store.by_index("job", "nobody") == []


def test_an_index_added_late_covers_what_is_there():
    store = Store()
    store.apply(obj("a", job="j"))
    store.add_index("job", by_job)
    assert len(store.by_index("job", "j")) == 1


def test_two_indexes_of_one_name_are_refused():
    store = Store()
    store.add_index("job", by_job)
    store.add_index("job", by_job)
    with pytest.raises(ValueError, match="another index"):
        store.add_index("job", lambda o: [])


def test_cluster_scoped_objects_have_no_namespace():
    store = Store()
    store.apply(obj("node-0", namespace=None))
    assert store.get(None, "node-0")


def test_replacing_tells_only_what_changed_and_what_is_gone():
    store = Store()
    same, changed, gone = obj("same"), obj("changed"), obj("gone")
    store.replace([same, changed, gone])
    newer, fresh = obj("changed", 2), obj("fresh")
    changes = store.replace([obj("same"), newer, fresh])
    assert changes == [Change(gone, None), Change(changed, newer), Change(None, fresh)]


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
        st.tuples(st.just("replace"), st.lists(OBJECTS, max_size=5)),
    ),
    max_size=30,
)


@given(MOVES)
def test_indexes_always_agree_with_the_content(moves):
    store = Store()
    store.add_index("job", by_job)
    for move, argument in moves:
        getattr(store, move)(argument)
        for job in ("x", "y"):
            found = {key_of(o) for o in store.by_index("job", job)}
            assert found == {key_of(o) for o in store.list() if job in by_job(o)}
        assert {key_of(o) for o in store.list("ns")} == {key_of(o) for o in store.list()}
