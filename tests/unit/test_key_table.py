"""The table by job key behaves like a dictionary, and the set of job keys like a set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.ids import job_key
from gflow.core.key_table import KeySet, KeyTable

KEYS = st.builds(job_key, st.sampled_from([1, 2, 4095, 4096, 4097, 9000]), st.none() | st.integers(0, 2))
STEPS = st.lists(st.tuples(st.sampled_from(["set", "delete", "pop", "take", "absorb"]), KEYS, st.integers()))


def same(table, plain):
    assert dict(table.items()) == plain
    assert sorted(table) == sorted(plain)
    assert (len(table), bool(table)) == (len(plain), bool(plain))
    assert sorted(table.values()) == sorted(plain.values())
    assert table == plain and table == table.copy()
    assert all(key in table and table[key] == table.get(key) == value for key, value in plain.items())


@given(STEPS)
def test_table_has_what_a_dictionary_has(steps):
    table, plain = KeyTable(), {}
    for what, key, value in steps:
        if what == "set":
            table[key] = plain[key] = value
        elif what == "absorb":
            other = KeyTable()
            other[key] = other[job_key(4096)] = value
            plain.update(other.items())
            table.absorb(other)
            assert len(other) == 0 and not list(other)
        elif what == "take" and plain:
            taken, found = table.take()
            assert plain.pop(taken) == found
        elif what != "take" and key in plain:
            if what == "pop":
                assert table.pop(key) == plain.pop(key)
            else:
                del table[key], plain[key]
        same(table, plain)


@given(st.lists(KEYS))
def test_consumed_entries_come_in_order_and_are_gone(keys):
    table, seen = KeyTable(), []
    for key in keys:
        table[key] = str(key)
    for key, value in table.consumed():
        assert key not in table and value == str(key)
        seen.append(key)
    assert seen == sorted(set(keys)) and len(table) == 0 and table == {}


def test_missing_keys_raise_as_in_a_dictionary():
    table = KeyTable()
    for missing in (table.__getitem__, table.__delitem__, table.pop):
        with pytest.raises(KeyError):
            missing(job_key(1))
    with pytest.raises(KeyError):
        table.take()
    assert job_key(1) not in table and table.get(job_key(1)) is None


def test_copy_does_not_follow_the_original():
    table = KeyTable()
    table[job_key(1)] = "a"
    copy = table.copy()
    table[job_key(1)] = table[job_key(2)] = "b"
    assert copy == {job_key(1): "a"}


@given(
    st.lists(st.tuples(st.sampled_from(["add", "discard", "update", "difference_update"]), st.lists(KEYS)))
)
def test_set_has_what_a_set_has(steps):
    keys, plain = KeySet(), set()
    for what, some in steps:
        if what in ("add", "discard"):
            for key in some:
                getattr(keys, what)(key)
                getattr(plain, what)(key)
        else:
            getattr(keys, what)(some)
            getattr(plain, what)(some)
        assert (len(keys), sorted(keys)) == (len(plain), sorted(plain))
        assert keys == plain and keys != plain | {0}
        assert all((key in keys) == (key in plain) for key in some)
