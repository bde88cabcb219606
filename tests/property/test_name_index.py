"""The index of jobs by name beside a dictionary of sets."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gflow.core.state.name_index import NameIndex

STEPS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([1001, 1002]), st.sampled_from(["", "a", "b"]), st.integers(1, 6)
    )
)


def made_of(model):
    made = NameIndex()
    for (uid, name), keys in model.items():
        for key in keys:
            made.add(uid, name, key)
    return made


@given(STEPS)
def test_index_equals_a_dictionary_of_sets(steps):
    index, model = NameIndex(), defaultdict(set)
    for is_new, uid, name, key in steps:
        if is_new:
            index.add(uid, name, key)
            model[uid, name].add(key)
        else:
            index.remove(uid, name, key)
            model[uid, name].discard(key)
        for one in (1001, 1002):
            assert index.find(one, "") == []
            assert [index.find(one, name) for name in "ab"] == [sorted(model[one, name]) for name in "ab"]
        assert index == made_of(model)
        assert index != made_of({**model, (1003, "c"): {1}})
