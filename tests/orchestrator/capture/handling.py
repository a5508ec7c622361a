"""Functions that handle what is raised in them, and such as pass it on; each is given what asks."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Ask = Callable[[], object]


class Mine(RuntimeError):
    """What nobody raises but the user's own code."""


class Timed:
    """A context manager that handles nothing."""

    def __enter__(self) -> Timed:
        return self

    def __exit__(self, *error: object) -> bool | None:
        if error[0] is None:
            print("done")
            return None
        return False


class Quiet(Timed):
    def __exit__(self, *error: object) -> bool | None:
        return error[0] is not KeyError


class Odd(Timed):
    """What it returns is ``None`` or not."""

    def __exit__(self, *error: object) -> Any:
        return print() or None


class Called(Timed):
    __exit__ = functools.partial(lambda *_: True)  # type: ignore[assignment]


class Leaves:
    def __call__(self, *error: object) -> bool:
        return True


class CalledToo(Timed):
    __exit__ = Leaves()  # type: ignore[assignment]


@contextlib.contextmanager
def passing() -> Iterator[int]:
    print()
    try:
        yield 1
    except KeyError:
        print()
    finally:
        print()


@contextlib.contextmanager
def within(around: Any) -> Iterator[None]:
    with around:
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        print()


def alone(ask: Ask) -> None:
    ask()


def handles_another(ask: Ask) -> None:
    try:
        ask()
    except (KeyError, StopIteration):
        print()
    except Mine as error:
        print(error)
    except AttributeError:
        return


def handles_an_inner_one(ask: Ask) -> None:
    def inner() -> None:
        try:
            ask()
        except wanted:
            print()

    wanted = KeyError
    inner()


def raises_again(ask: Ask) -> None:
    try:
        ask()
    except KeyError:
        print()
    except RuntimeError as error:
        print(error)
        raise
    except Exception as error:
        raise Mine from error
    finally:
        print()


def before_and_later(ask: Ask) -> None:
    with contextlib.suppress(RuntimeError):
        print()
    ask()
    try:
        print()
    except RuntimeError:
        ask()
    try:
        int("none")
    except ValueError as error:
        print(error, ask())


def managed(ask: Ask) -> None:
    around = passing()
    with torch.no_grad(), Timed() as timed, around as number, within(Timed()), threading.Lock():
        cell = [lambda: (timed, number)]
        with contextlib.suppress(KeyError), contextlib.nullcontext(cell):
            ask()
    with contextlib.ExitStack() as stack:
        stack.enter_context(Timed())
        stack.enter_context(torch.enable_grad())
        ask()


def chosen(ask: Ask) -> None:
    for n in range(2):
        with torch.no_grad() if n else contextlib.nullcontext():
            ask()


def handles(ask: Ask) -> None:
    try:
        ask()
    except IndexError:
        print()


def handles_one_of(ask: Ask) -> None:
    try:
        ask()
    except KeyError:
        raise
    except (StopIteration, (torch.OutOfMemoryError, OSError)):  # noqa: B030
        print()


def handles_everything(ask: Ask) -> None:
    try:
        ask()
    except:  # noqa: E722
        return


def handles_what_nobody_knows(ask: Ask) -> None:
    kinds = [RuntimeError]
    try:
        ask()
    except kinds[0]:
        print()


def handles_what_it_has_made(ask: Ask) -> None:
    try:
        raises_again(ask)
    except Mine:
        print()


def leaves_at_last(ask: Ask) -> None:
    while True:
        try:
            ask()
        finally:
            break  # noqa: B012


def raises_in_some_cases(ask: Ask) -> None:
    try:
        ask()
    except RuntimeError as error:
        if "memory" not in str(error):
            raise


def suppresses(ask: Ask) -> None:
    with contextlib.suppress((KeyError, IndexError)):
        ask()


def suppresses_by_a_stack(ask: Ask) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(RuntimeError))
        ask()


def by_a_generator(ask: Ask) -> None:
    with torch.no_grad() if ask is None else quiet():
        ask()


def by_an_inner_one(ask: Ask) -> None:
    with within(quiet()):
        ask()


def by_a_decorator(ask: Ask) -> None:
    quiet()(ask)()


def by_a_class(ask: Ask) -> None:
    with Timed(), Quiet():
        ask()


def by_what_it_is_told(ask: Ask) -> None:
    with Odd():
        ask()


def by_a_partial(ask: Ask) -> None:
    with Called():
        ask()


def by_an_object(ask: Ask) -> None:
    with CalledToo():
        ask()


PASS_ON: Mapping[str, Callable[[Ask], None]] = {
    f.__name__: f
    for f in (alone, handles_another, raises_again, before_and_later, managed, chosen, handles_an_inner_one)
}
GO_ON: Mapping[str, Callable[[Ask], None]] = {
    f.__name__: f
    for f in (
        *(handles, handles_one_of, handles_everything, handles_what_nobody_knows, handles_what_it_has_made),
        *(leaves_at_last, raises_in_some_cases, suppresses, suppresses_by_a_stack, by_a_generator),
        *(by_an_inner_one, by_a_decorator, by_a_class, by_what_it_is_told, by_a_partial, by_an_object),
    )
}
