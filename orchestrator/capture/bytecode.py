"""What code says, read once: modules that it imports, attributes that it sets, names ``a.b.c`` that it reads.

Every traced rank asks for it in a process of its own, so the process that they are forked from reads ahead.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from .frames import is_own

#: Ways to set an attribute whose name is a text.
_BY_TEXT = frozenset(("setattr", "__dict__", "vars", "__setattr__"))
#: And to read one.
_ASKED_BY_TEXT = frozenset(("getattr", "attrgetter", "__getattribute__", "__dict__", "vars"))
_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))
_READS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_TABLES = frozenset(("__dict__", "vars"))
_NAMING = _BY_TEXT | _ASKED_BY_TEXT
_LOOK_UPS = frozenset(("BINARY_SUBSCR", "STORE_SUBSCR", "POP_TOP", "RETURN_VALUE"))
_CALLS = frozenset(("CALL", "CALL_FUNCTION_EX"))


@functools.cache
def imports(code: CodeType) -> tuple[str, ...]:
    """Names of modules that code imports; one in its own package begins with ``$``.

    `import a` and `from . import b` say so; of `import_module` the texts of the code that name modules.
    """
    steps = list(dis.get_instructions(code)) if _has(code, "IMPORT_NAME") else []
    names: list[str] = []
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, listed = steps[i - 2].argval, steps[i - 1].argval
            start = "$" + ("." if step.argval else "") if level else ""
            outer = start + step.argval
            names += [outer, *(f"{outer}.{inner}" for inner in listed or ())]
    if {"import_module", "__import__", "modules"} & {*code.co_names}:
        names += _texts(code)
    for inner in _inside(code):
        names += imports(inner)
    return tuple(dict.fromkeys(names))


@functools.cache
def sets(code: CodeType) -> frozenset[str]:
    """Names at which code sets attributes, as ``x.a = 1``, but not in functions that it makes."""
    if not _has(code, "STORE_ATTR"):
        return frozenset()
    return frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")


@functools.cache
def stored(code: CodeType) -> frozenset[str]:
    """Names at which code may set attributes, in functions that it makes and by texts too."""
    named = _texts(code) if _BY_TEXT & {*code.co_names} else ()
    return sets(code).union(named, *map(stored, _inside(code)))


@functools.cache
def texts(code: CodeType) -> frozenset[str]:
    """Names of attributes that code may read by texts, in functions that it makes too."""
    named = _texts(code) if _ASKED_BY_TEXT & {*code.co_names} else ()
    return frozenset[str]().union(named, *map(texts, _inside(code)))


@functools.cache
def built_names(code: CodeType) -> bool:
    """May code name an attribute by a text that is made when it runs? In functions inside, too.

    `getattr(F, "a")` and `vars(F)["a"]` have a constant where `getattr(F, a)` and `vars(F)[a]` have none.
    """
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.argval in _NAMING and step.opname in _LOADS | _READS:
            ends = _LOOK_UPS if step.argval in _TABLES else _CALLS
            # What is named stands behind, up to the call or the look-up.
            until = next((j for j in range(i + 1, len(steps)) if steps[j].opname in ends), len(steps))
            if not any(s.opname == "LOAD_CONST" and isinstance(s.argval, str) for s in steps[i:until]):
                return True
    return any(built_names(inner) for inner in _inside(code))


def _texts(code: CodeType) -> list[str]:
    return [text for text in code.co_consts if isinstance(text, str)]


@functools.cache
def chains(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """The names ``a.b.c`` that code reads, each as its parts."""
    found: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in _LOADS:
            chain = (str(step.argval),)
        elif step.opname in _READS and chain:
            chain = (*chain, str(step.argval))
        elif step.opname not in ("COPY", "CACHE", "PUSH_NULL"):
            chain = ()
        if chain:
            found[chain] = None
    for inner in _inside(code):
        found |= dict.fromkeys(chains(inner))
    return tuple(found)


@functools.cache
def names(code: CodeType) -> frozenset[str]:
    """What code names, in functions that it makes too."""
    return frozenset(code.co_names).union(*map(names, _inside(code)))


@functools.cache
def said(code: CodeType) -> frozenset[str]:
    """Texts that code has, in functions that it makes too."""
    return frozenset(_texts(code)).union(*map(said, _inside(code)))


def read_ahead() -> None:
    """Read the code of the user's modules that are loaded: functions and methods that they hold by name."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or "<"
        if isinstance(module, ModuleType) and is_own(file):
            for function in _functions(module):
                for reader in (imports, stored, texts, built_names, chains, names):
                    reader(function.__code__)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        held = list(vars(value).values()) if issubclass(type(value), type) else (value,)
        for item in held:
            item = getattr(item, "__func__", item) if isinstance(item, staticmethod | classmethod) else item
            while type(item) is FunctionType and "__wrapped__" in vars(item):  # as torch.no_grad() wraps it
                item = vars(item)["__wrapped__"]
            if type(item) is FunctionType and item.__code__.co_filename == module.__file__:
                yield item


def _has(code: CodeType, op: str) -> bool:
    """May code have an instruction of this kind? Its bytes say so faster than its instructions."""
    return dis.opmap[op] in code.co_code[::2]


def _inside(code: CodeType) -> Iterator[CodeType]:
    return (inner for inner in code.co_consts if isinstance(inner, CodeType))
