"""Reads a pickle as data: nothing is imported, called or built, whatever it says.

`torch.distributed.checkpoint` keeps its metadata as a pickle, and a pickle is a program. Here its
instructions build lists, tuples, dictionaries and `Record`s only, which name the class or function that a
real reader would call, with its arguments and its state. An instruction that is not in the table is refused.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

from ..errors import Malformed, need

MAX_OPS = 20_000_000
PUSH = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "INT", "LONG", "FLOAT", "UNICODE"),
}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IDLE = {"PROTO", "FRAME"}


@dataclass(eq=False)
class Record:
    """What stands for an object: `module.name` of what would make it, its arguments, its state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = field(default=None)


class _Stack:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        need(len(self.items) > (self.marks[-1] if self.marks else 0), "metadata: a damaged pickle")
        return self.items.pop()

    def top(self) -> Any:
        need(bool(self.items), "metadata: a damaged pickle")
        return self.items[-1]

    def to_mark(self) -> list[Any]:
        need(bool(self.marks), "metadata: a damaged pickle")
        at = self.marks.pop()
        found = self.items[at:]
        del self.items[at:]
        return found


def unpickled(data: bytes) -> Any:
    """The data of a pickle; `Malformed` for anything else."""
    stack = _Stack()
    try:
        for number, (op, argument, _) in enumerate(pickletools.genops(data)):
            need(number < MAX_OPS, "metadata: too large")
            if op.name == "STOP":
                return stack.pop()
            _step(stack, op.name, argument)
    except Malformed:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise Malformed(f"metadata: no pickle that can be read ({type(error).__name__})") from None
    raise Malformed("metadata: a pickle without an end")


def _step(stack: _Stack, op: str, argument: Any) -> None:
    """One instruction."""
    items = stack.items
    if op in PUSH:
        items.append(argument)
    elif op in CONSTANTS:
        items.append(CONSTANTS[op])
    elif op in EMPTY:
        items.append(EMPTY[op]())
    elif op in TUPLES:
        items.append(tuple(reversed([stack.pop() for _ in range(TUPLES[op])])))
    elif op == "MARK":
        stack.marks.append(len(items))
    elif op == "TUPLE":
        items.append(tuple(stack.to_mark()))
    elif op == "MEMOIZE":
        stack.memo[len(stack.memo)] = stack.top()
    elif op in ("BINPUT", "LONG_BINPUT", "PUT"):
        stack.memo[argument] = stack.top()
    elif op in ("BINGET", "LONG_BINGET", "GET"):
        items.append(stack.memo[argument])
    elif op in ("APPENDS", "ADDITEMS"):
        found = stack.to_mark()
        stack.top().extend(found)
    elif op == "APPEND":
        one = stack.pop()
        stack.top().append(one)
    elif op in ("SETITEMS", "SETITEM"):
        pairs = stack.to_mark() if op == "SETITEMS" else list(reversed([stack.pop(), stack.pop()]))
        _target(stack.top()).update((_key(k), v) for k, v in zip(pairs[::2], pairs[1::2], strict=True))
    elif op == "STACK_GLOBAL":
        name, module = stack.pop(), stack.pop()
        items.append(Record(f"{module}.{name}"))
    elif op == "GLOBAL":
        items.append(Record(argument.replace(" ", ".", 1)))
    elif op in ("NEWOBJ", "REDUCE"):
        arguments, made = stack.pop(), stack.pop()
        items.append(Record(made.name, tuple(arguments)))
    elif op == "BUILD":
        state = stack.pop()
        stack.top().state = state
    elif op not in IDLE:
        raise Malformed(f"metadata: the instruction {op} has no place in it")


def _target(value: Any) -> dict[Any, Any]:
    """What items are set in: a dictionary, or what stands for one, such as an ordered one."""
    if isinstance(value, Record):
        value.state = {} if value.state is None else value.state
        value = value.state
    need(isinstance(value, dict), "metadata: a damaged pickle")
    found: dict[Any, Any] = value
    return found


def _key(value: Any) -> Any:
    """A key that can be looked up: records are equal to themselves only."""
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else value
