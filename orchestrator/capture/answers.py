"""What the machine answers: numbers, texts and dates that may be shown, and that nobody may decide by.

Each is what it is in a job, and knows where it comes from; so does what is computed of it. Whoever compares
it, makes a plain number of it or looks into its text is refused. What cannot be followed so is refused at
once.
"""

from __future__ import annotations

import datetime
import dis
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ClassMethodDescriptorType, CodeType, FrameType, FunctionType
from typing import Any, Self

from .errors import StateError
from .frames import is_own, runs_in, user_frame
from .pace import PACE

Refuse = Callable[[StateError], None]
BY_TIME = (
    "the step decides by the time",
    "a decision outside of the step, in the loop that calls it; here the time can be measured and shown",
)
BY_ANSWER = (
    "the step decides by what the machine answers (a number of the process, its memory, its host)",
    "an entry of the batch for the answer, or the question outside of the step; here it can be shown",
)
BY_PLACE = (
    "the step decides by where an object lies in memory, or by the hash of a text: each process has others",
    "sorted(names) or a number that is counted; as a key an identity or a hash is fine",
)
#: Who is told of a decision; nobody, once the step is over.
listening: list[Refuse] = []

#: Of which classes answers were given in this process: where there are none, nothing is made of them.
given: set[type] = set()

#: What no longer is an answer: a truth value, a plain number, a key.
_DECIDES = frozenset(
    f"__{name}__"
    for name in (
        *("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "index", "trunc", "divmod", "rdivmod"),
        *("hash", "contains", "iter", "len"),
    )
)
#: What stays one, besides all methods with a name of their own.
_STAYS = frozenset(
    f"__{name}__"
    for name in (
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
        *("mod", "rmod", "neg", "pos", "abs", "round", "floor", "ceil", "pow", "rpow", "lshift", "rshift"),
        *("and", "rand", "or", "ror", "xor", "rxor", "invert", "str", "format", "getitem"),
    )
)


#: What an identity may be asked: which one it is.
_AS_KEY = {"__eq__", "__ne__", "__hash__", "__str__", "__format__"}


class Answer:
    """What a clock has said or the machine has answered, or what was computed of it."""

    __slots__ = ()
    says, instead, timed = *BY_ANSWER, False


class Seconds(Answer, float):
    """A time, in a unit of the user's."""

    says, instead, timed = *BY_TIME, True


class Whole(Answer, float):
    """A whole number. It is no ``int``: as a place in a list or a number of rounds Python asks no ``int``."""

    exact: int

    def __new__(cls, value: int) -> Self:
        made = super().__new__(cls, value)
        made.exact = int(value)
        return made

    def __repr__(self) -> str:
        return repr(self.exact)


class Ticks(Whole):
    """A whole number of nanoseconds, say."""

    says, instead, timed = *BY_TIME, True


class Amount(Answer, float):
    """How much of something a process uses."""


class Count(Whole):
    """How many of something there are, or a number that the system has given."""


class Identity(Answer, int):
    """``id(x)``, or a hash: a key, and nothing to count or to order with."""

    says, instead = BY_PLACE


class Words(Answer, str):
    """A text that the machine has given; it can be printed and lengthened."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return str.__len__(self) > 0  # that there is one says nothing


class Moment(Answer, datetime.datetime):
    """A date with a time of day."""

    says, instead, timed = *BY_TIME, True


class Day(Answer, datetime.date):
    """A date."""

    says, instead, timed = *BY_TIME, True


class Clock(Answer, datetime.time):
    """A time of day."""

    says, instead, timed = *BY_TIME, True


class Span(Answer, datetime.timedelta):
    """The difference of two moments."""

    says, instead, timed = *BY_TIME, True


class Parts(Answer, tuple[Any, ...]):
    """Several answers in one, as ``time.localtime()`` and ``resource.getrusage()`` give them."""

    named: Any

    def __getattr__(self, name: str) -> Any:
        return told(getattr(self.named, name), type(self.named).__module__ == "time")


def answer(value: Any, timed: bool = False) -> Any:
    """What the user's code has asked for, as an answer."""
    given.add(type(value))
    return told(value, timed)


def told(value: Any, timed: bool = False) -> Any:
    """The value as an answer; what cannot be followed is refused. ``timed`` numbers are those of a clock."""
    if value is None or isinstance(value, Answer):
        return value
    if isinstance(value, datetime.datetime):
        return Moment(*value.timetuple()[:6], value.microsecond, value.tzinfo, fold=value.fold)
    if isinstance(value, datetime.date):
        return Day(value.year, value.month, value.day)
    if isinstance(value, datetime.time):
        return Clock(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if isinstance(value, datetime.timedelta):
        return Span(value.days, value.seconds, value.microseconds)
    if isinstance(value, float):
        return (Seconds if timed else Amount)(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return (Ticks if timed else Count)(value)
    if isinstance(value, str):
        return Words(value)
    if isinstance(value, tuple) and all(isinstance(x, int | float | str) for x in value):
        parts = Parts(told(x, timed) for x in value)
        parts.named = value
        return parts
    _refuse(Seconds if timed else Count)
    return value


def computed_with(values: Iterable[object]) -> None:
    """A tensor is made of these: of an answer, in a later step it is another one."""
    for value in values:
        if isinstance(value, Answer):
            _refuse(type(value))
        elif type(value) in (list, tuple):
            computed_with(value)  # type: ignore[arg-type]


def refuse_now() -> None:
    """An answer that cannot be followed."""
    _refuse(Count)


def users_own(frame: FrameType | None) -> bool:
    """Is it the user's own code, and not that of a package?"""
    return frame is not None and is_own(runs_in(frame))


def asks(frame: FrameType | None) -> bool:
    """Is it the user's own code that is answered? A library's function that does nothing but hand on what it
    is told, such as the ``time()`` of an event loop, asks for its caller."""
    while frame is not None and not users_own(frame) and _hands_on(frame.f_code, frame.f_lasti):
        frame = frame.f_back
    return users_own(frame)


@functools.cache
def _hands_on(code: CodeType, place: int) -> bool:
    """Does a function return what it has just called for?"""
    after = (i.opname for i in dis.get_instructions(code) if i.offset > place)
    return next(after, "") == "RETURN_VALUE"


def _refuse(kind: type[Answer]) -> None:
    for refuse in tuple(listening):
        refuse(StateError(kind.says, frame=user_frame(), instead=kind.instead))


def _staying(plain: Callable[..., Any], timed: bool) -> Callable[..., Any]:
    def stay(*arguments: Any, **options: Any) -> Any:
        value = plain(*arguments, **options)
        return value if value is NotImplemented else told(value, timed)

    return stay


def _deciding(plain: Callable[..., Any], kind: type[Answer]) -> Callable[..., Any]:
    def decide(*arguments: Any) -> Any:
        caller = sys._getframe(1)
        if users_own(caller) and not (plain.__name__ in _PLAIN and shows(caller)):
            _refuse(kind)
        return plain(*arguments)

    return decide


#: What a text asks a number for, to show it.
_PLAIN = ("__int__", "__index__", "__float__")


def shows(frame: FrameType) -> bool:
    """Is it the ``%`` of a text that asks? Where a number is divided, none is asked for a plain one."""
    instructions = dis.get_instructions(frame.f_code)
    return any(i.offset == frame.f_lasti and i.argrepr in ("%", "%=") for i in instructions)


def _teach(kind: type[Answer], plain: type) -> None:
    for name in sorted({*dir(plain)} - (_AS_KEY if kind is Identity else set())):
        item = _exact(getattr(plain, name)) if issubclass(kind, Whole) else getattr(plain, name)
        own = next(vars(base)[name] for base in plain.__mro__ if name in vars(base))
        if isinstance(own, ClassMethodDescriptorType | staticmethod) or (plain, name) == (str, "encode"):
            continue
        if name in _DECIDES and item is not None:
            setattr(kind, name, _deciding(item, kind))
        elif name in _STAYS or (not name.startswith("_") and callable(item)):
            decides = kind is Identity or (plain is str and _looks(name))
            setattr(kind, name, _deciding(item, kind) if decides else _staying(item, kind.timed))
        elif not name.startswith("_") and hasattr(own, "__get__"):
            setattr(kind, name, property(_staying(own.__get__, kind.timed)))


def _exact(method: Any) -> Any:
    """A method of whole numbers, of what stands for them; together with another number it is that one's."""
    if not callable(method):
        return method

    @functools.wraps(method)
    def of(*arguments: Any, **options: Any) -> Any:
        plain = [x.exact if isinstance(x, Whole) else x for x in arguments]
        if any(isinstance(x, float) for x in plain):
            return getattr(float, method.__name__)(float(plain[0]), *plain[1:], **options)
        return method(*plain, **options)

    return of


def _looks(name: str) -> bool:
    """Does this method of a text look into it? All but operators do."""
    return not name.startswith("__")


_KINDS: Mapping[type[Answer], type] = {
    Seconds: float,
    Ticks: int,
    Amount: float,
    Count: int,
    Identity: int,
    Words: str,
    Moment: datetime.datetime,
    Day: datetime.date,
    Clock: datetime.time,
    Span: datetime.timedelta,
    Parts: tuple,
}
for _kind, _plain in _KINDS.items():
    _teach(_kind, _plain)


def identity(value: object) -> int:
    """Stands for ``id``."""
    return Identity(id(value))


def hashed(value: object) -> int:
    """Stands for ``hash``: a hash of numbers is one number everywhere."""
    found = hash(value)
    return found if hashed_alike(value) else Identity(found)


identity.__name__, hashed.__name__ = "id", "hash"


def hashed_alike(value: object) -> bool:
    """Is the hash of this one the same in all processes? Of a number it is, unless code hashes it."""
    if isinstance(value, tuple | frozenset):
        return all(map(hashed_alike, value))
    return isinstance(value, int | float | complex) and not isinstance(type(value).__hash__, FunctionType)


class _Standing(type):
    """Of classes that stand for those of ``datetime``, their base: what is made of an answer is one."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return _of(cls.__mro__[1], arguments, options)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


def _of(plain: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    value = plain(*arguments, **options)
    asked = any(isinstance(x, Answer) for x in (*arguments, *options.values()))
    return told(value, True) if asked else value


def standing(plain: Any) -> Any:
    """The class that stands for one of ``datetime`` in the user's code: it asks the clock for an answer."""

    def method(name: str, of_clock: bool) -> classmethod[Any, Any, Any]:
        def call(_: Any, *arguments: Any, **options: Any) -> Any:
            value = _of(getattr(plain, name), arguments, options)
            return answer(PACE.late(value), True) if of_clock and asks(sys._getframe(1)) else value

        return classmethod(call)

    asking = {name: method(name, True) for name in ("now", "utcnow", "today") if hasattr(plain, name)}
    made = {name: method(name, False) for name in ("fromtimestamp", "combine") if hasattr(plain, name)}
    return _Standing(plain.__name__, (plain,), {**asking, **made, "__module__": plain.__module__})
