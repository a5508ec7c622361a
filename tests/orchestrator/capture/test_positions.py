"""What is no part of a value and may count: its length, how far it is read, what it has drawn."""

from __future__ import annotations

import abc
import functools
import hashlib
import io
import itertools
import random
import sqlite3
from array import array
from collections import UserDict, deque
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from orchestrator.capture.positions import position_of


def generator() -> Any:
    yield 1
    yield 2


class Abstract(abc.ABC):
    """Of the user's: who is registered with it counts."""

    @abc.abstractmethod
    def run(self) -> None:
        """It does nothing."""


class Implemented:
    """One to register."""


class Log(io.StringIO): ...


class Tree(ElementTree.Element): ...


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.execute("create table t (a)")
    return made


def keyed() -> dict[Any, int]:
    return dict.fromkeys((torch.zeros(2), torch.ones(2), Implemented()), 0)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "key of a dictionary": (lambda: {"a": 1}, lambda d: d.update(b=1)),
    "order of its keys": (lambda: {"a": 1, "b": 2}, lambda d: d.update(a=d.pop("a"))),
    "order of keys that are objects": (keyed, lambda d: d.update({next(iter(d)): d.pop(next(iter(d)))})),
    "value among many": (lambda: dict.fromkeys(range(2000), 0), lambda d: d.update({7: 1})),
    "row of a database": (database, lambda c: c.execute("insert into t values (1)")),
    "member of a set": (lambda: {1}, lambda s: s.add(2)),
    "member among many": (lambda: set(range(20)), lambda s: (s.remove(3), s.add(33))),
    "entry of a user dictionary": (lambda: UserDict(a=1), lambda d: d.update(b=2)),
    "item of a list": (lambda: [1], lambda x: x.append(2)),
    "order of tensors in a list": (lambda: list(keyed()), lambda x: x.append(x.pop(0))),
    "order of tensors in a queue": (lambda: deque(keyed()), lambda x: x.rotate(1)),
    "item of a queue": (lambda: deque([1]), lambda x: x.append(2)),
    "element of an array": (lambda: np.zeros(3), lambda x: x.fill(1)),
    "element of a large array": (lambda: np.zeros(300), lambda x: x.__setitem__(7, 1)),
    "bytes": (lambda: bytearray(2), lambda x: x.__setitem__(0, 1)),
    "array of Python's": (lambda: array("i", [1]), lambda x: x.append(2)),
    "place in a generator": (generator, next),
    "place in a file": (lambda: io.StringIO("abc"), lambda f: f.read(1)),
    "seed": (torch.Generator, lambda g: g.manual_seed(7)),
    "digest": (hashlib.sha256, lambda h: h.update(b"a")),
    "random numbers": (lambda: random.Random(1), lambda r: r.random()),
    "random numbers of NumPy": (lambda: np.random.default_rng(1), lambda r: r.random()),
    "old random numbers of NumPy": (lambda: np.random.RandomState(1), lambda r: r.rand()),
    "random bits of NumPy": (lambda: np.random.PCG64(1), lambda b: b.random_raw()),
    "a seed's children": (lambda: np.random.SeedSequence(1), lambda s: s.spawn(1)),
    "bytes of a storage": (lambda: torch.UntypedStorage(4), lambda s: s.resize_(8)),
    "place in a file of a class of one's own": (lambda: Log("abc"), lambda f: f.read(1)),
    "element of a class of one's own": (lambda: Tree("a"), lambda t: t.append(ElementTree.Element("b"))),
    "counter": (lambda: itertools.count(), next),
    "place in a list": (lambda: iter([1, 2]), next),
    "classes of an abstract one": (lambda: Abstract, lambda c: c.register(Implemented)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_leaves_all_parts_as_they_are_is_seen(name: str) -> None:
    make, change = CHANGES[name]
    value = make()
    before = position_of(value)
    assert before == position_of(value)
    change(value)
    assert before != position_of(value)


def test_keys_that_a_step_makes_anew_have_no_order_that_counts() -> None:
    """A cache has the tensors of each step."""
    cache: dict[Any, int] = dict.fromkeys((kept := object(), object()), 0)
    before = position_of(cache)
    cache.clear()
    cache.update(dict.fromkeys((object(), kept), 0))
    assert position_of(cache) == before


@pytest.mark.parametrize("value", [1, random.SystemRandom(), object(), io.StringIO, {}.keys])
def test_others_have_none(value: object) -> None:
    assert position_of(value) is None


def test_a_tuple_that_another_one_takes_the_place_of_counts_by_its_length() -> None:
    """``seen = (*seen, name)``: what both have is equal."""
    assert position_of(()) != position_of(("a",)) != position_of(("a", "a"))
    assert position_of(("a", "a")) == position_of(tuple(["a", "a"]))


def test_a_tuple_of_objects_has_an_order() -> None:
    one = tuple(keyed())
    assert position_of(one) == position_of(tuple(one)) != position_of((*one[1:], one[0]))


def test_of_a_cache_its_hits_are_no_news_and_what_it_keeps_is() -> None:
    @functools.lru_cache
    def cached(x: int) -> int:
        return x

    cached(1)
    before = position_of(cached)
    cached(1)
    assert position_of(cached) == before
    cached(2)
    assert position_of(cached) != before


def test_few_elements_are_told_in_full() -> None:
    assert position_of({1, 2}) == (2, ["1", "2"]) and position_of(np.arange(3)) == [0, 1, 2]


def test_what_stands_several_times_in_a_sequence_is_turned_round() -> None:
    """Every fifth step averaged inside a node only: the deque held one group four times, and another one."""
    whole, part = object(), object()
    turned = deque([whole, whole, part])
    before = position_of(turned)
    assert position_of(deque(turned)) == before
    turned.rotate(-1)
    assert position_of(turned) != before
    assert position_of(deque([whole, whole, object()])) == position_of(deque([whole, whole, object()]))
