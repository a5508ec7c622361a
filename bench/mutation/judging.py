"""Tries mutants: which test notices each of them.

How it is fast. A first process imports and collects the tests once, runs them once to learn which lines of
the package each of them executes and how long it takes, and then forks a child per mutant: the child
exchanges the code of the changed function in place and runs the tests that execute the changed statement,
quickest first, until one fails. What survives this, or changes what runs at import, is tried again from
scratch: a child of a process that has imported neither package nor tests loads the changed module and lets
pytest collect anew. A test that takes ten times its usual time is a hang, which counts as noticed.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .lines import Lines, Test
from .processes import Limits, child, listen, spread
from .sites import ROOT, Mutant, Target, compiled

Say = Callable[[str], None]
Functions = dict[tuple[str, str, int], list[FunctionType]]


def judge(
    target: Target,
    found: Sequence[Mutant],
    jobs: int,
    longest: float,
    say: Say,
    *,
    kept: Path | None = None,
    most: float = math.inf,
    only: Mapping[int, str] | None = None,
) -> list[str]:
    """A verdict on each mutant: `killed by TEST`, `hung` or `survived`.

    Each is tried with the quickest tests that take `most` seconds in all. What tests execute is read from
    `kept`, if that is of the same code, and written there. With `only`, a mutant has to be noticed by the
    test that is given for it, and nothing is measured.
    """
    _warm(target)
    verdicts, begin = [""] * len(found), time.monotonic()
    tests: list[Test] = []  # the first is what collection executes
    loaded = _read(target, kept) if kept else None

    def hear(item: Any) -> None:
        if "tests" in item:
            tests[:] = [Test(*t) for t in item["tests"]]
            total = sum(t.seconds for t in tests)
            say(f"{time.monotonic() - begin:.1f} s {len(tests) - 1} tests of {total:.1f} s")
            if kept:
                kept.write_text(json.dumps([_state(target), item["tests"]]), encoding="utf-8")
            return
        verdicts[item["number"]] = item["said"]
        if item["said"] != "again":
            done = sum(v not in ("", "again") for v in verdicts)
            mutant = found[item["number"]]
            say(f"{time.monotonic() - begin:.1f} s {done}/{len(found)} {item['said']} {mutant}")

    def first(tell: Callable[[Any], None]) -> None:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        lines = Lines(target)
        lines.start()
        plugin = _Collected(target, found, tell, jobs, longest, lines, loaded, most, only)
        _pytest(target, target.tests, plugin)

    def second(tell: Callable[[Any], None]) -> None:
        def again(number: int) -> None:
            mutant = found[number]
            if only is not None:
                wanted = Test(only[number], longest, {})
                said = _scratch(target, mutant, [wanted], (only[number].split("::")[0],))
            else:
                every = not mutant.inside or tests[0].executes(mutant)
                chosen = _within(most, [t for t in tests[1:] if every or t.executes(mutant)])
                quick = [t for t in chosen if t.name.startswith(target.first)]
                said = _scratch(target, mutant, quick, target.first)
                rest = [t for t in chosen if t not in quick]
                if said == "survived" and rest:
                    said = _scratch(target, mutant, rest, target.tests)
            tell({"number": number, "said": said})

        spread(jobs, [n for n, v in enumerate(verdicts) if v in ("", "again")], again)

    listen(first, hear)
    if not tests:
        raise SystemExit("the tests fail without a change")
    listen(second, hear)
    return verdicts


def _warm(target: Target) -> None:
    """Imports what the tests need, but not the package nor tests, and makes hypothesis repeat itself."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that children end with this process
    for name in target.warm:
        importlib.import_module(name)
    own = target.module("__init__.py")
    assert not [n for n in sys.modules if n == own or n.startswith(own + ".")], "a mutant would come too late"
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutation", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutation")


def _state(target: Target) -> str:
    """Changes with the package and its tests."""
    files = [p for name in target.tests for p in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]]
    files += [target.package / name for name in target.files()]
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in files)).hexdigest()


def _read(target: Target, kept: Path) -> list[Any] | None:
    if not kept.exists():
        return None
    state, tests = json.loads(kept.read_text(encoding="utf-8"))
    return list(tests) if state == _state(target) else None


def _pytest(target: Target, files: Sequence[str], *plugins: object) -> int:
    import pytest

    folder = tempfile.mkdtemp(prefix="mutants-")
    words = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}", *target.options, *files]
    try:
        return int(pytest.main(words, plugins=list(plugins)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Collected:
    """A pytest plugin that takes the place of the run: measures all tests, then tries every mutant."""

    def __init__(
        self,
        target: Target,
        found: Sequence[Mutant],
        tell: Callable[[Any], None],
        jobs: int,
        longest: float,
        lines: Lines,
        loaded: list[Any] | None,
        most: float,
        only: Mapping[int, str] | None,
    ) -> None:
        self.target, self.found, self.tell, self.jobs, self.longest = target, found, tell, jobs, longest
        self.lines, self.loaded, self.most, self.only = lines, loaded, most, only
        self.reports: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    def pytest_runtestloop(self, session: Any) -> bool:
        at_import: list[Any] = ["import", 0.0, self.lines.stop()]
        items = {item.nodeid: item for item in session.items}
        session.config._tmp_path_factory.getbasetemp()
        if self.only is not None:
            told = [at_import, *([name, self.longest, {}] for name in sorted({*self.only.values()}))]
        else:
            known = {t[0]: t for t in self.loaded or ()}
            new = self.measured([item for name, item in items.items() if name not in known])
            told = [at_import, *(t for name, t in known.items() if name != at_import[0]), *new]
        self.tell({"tests": told})
        start, *tests = [Test(*t) for t in told if t[1] <= self.longest]
        functions = _functions(self.target)
        gc.collect()
        gc.freeze()
        killers = Counter[tuple[str, str]]()

        def attempt(number: int) -> None:
            mutant = self.found[number]
            if self.only is not None:
                chosen = [t for t in tests if t.name == self.only[number]]
            else:
                chosen = [t for t in tests if t.executes(mutant)]
            chosen = _within(self.most, [t for t in chosen if t.name in items])
            chosen.sort(key=lambda t: (0.002 + t.seconds) / (1 + killers[mutant.file, t.name]))
            said = "again"
            if mutant.inside:
                said = child(lambda: self.quick(mutant, chosen, items, functions))
            if said == "survived" and start.executes(mutant):
                said = "again"
            killers[mutant.file, said.removeprefix("killed by ")] += 1
            self.tell({"number": number, "said": said})

        spread(self.jobs, range(len(self.found)), attempt)
        return True

    def run(self, item: Any, after: Any) -> bool:
        """Does the test pass?"""
        self.reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return not any(r.failed for r in self.reports)

    def measured(self, items: list[Any]) -> list[Any]:
        """Name, seconds and lines of each test that is not too long."""
        found: list[Any] = []
        for group in [[item] for item in items] if self.target.apart else [items]:
            with tempfile.NamedTemporaryFile("r") as file:
                said = child(partial(self.measure, group, file.name))
                if said != "done" and self.target.apart:  # too long, or not when it is watched
                    print(f"left out: {said} {group[0].nodeid}", file=sys.stderr, flush=True)
                    continue
                if said != "done":
                    raise SystemExit(f"the tests fail without a change: {said}")
                found += json.load(file)
        return found

    def measure(self, items: list[Any], name: str) -> str:
        result = []
        for item in items:
            if self.target.apart:
                signal.setitimer(signal.ITIMER_REAL, 60 + 5 * self.longest)
            seconds = 0.0
            if not self.target.apart:
                start = time.perf_counter()
                if not self.run(item, None):
                    return str(item.nodeid)
                seconds = time.perf_counter() - start
                if seconds > self.longest:
                    continue
            start = time.perf_counter()
            self.lines.start()
            good = self.run(item, None)
            lines = self.lines.stop()
            if not good:
                return f"{item.nodeid} when traced"
            result.append([item.nodeid, seconds or time.perf_counter() - start, lines])
        Path(name).write_text(json.dumps(result), encoding="utf-8")
        return "done"

    def quick(self, mutant: Mutant, tests: list[Test], items: Mapping[str, Any], functions: Functions) -> str:
        if not _swap(self.target, mutant, functions):
            return "again"
        limits = Limits()
        for i, test in enumerate(tests):
            limits.set(*_allowed(self.target, test))
            after = items[tests[i + 1].name] if i + 1 < len(tests) else None
            if not self.run(items[test.name], after):
                return f"killed by {test.name}"
        return "survived"


def _within(most: float, tests: Sequence[Test]) -> list[Test]:
    """The quickest of them, which take so many seconds in all; at least one."""
    tests = sorted(tests, key=lambda t: t.seconds)
    sums = accumulate(t.seconds for t in tests)
    return [t for k, (t, total) in enumerate(zip(tests, sums, strict=True)) if not k or total <= most]


def _allowed(target: Target, test: Test) -> tuple[float, float]:
    seconds = target.patience + 10 * test.seconds
    return seconds, target.clock + 3 * seconds


def _functions(target: Target) -> Functions:
    """The functions of the package that exist, by file, name and line."""
    found: Functions = {}
    for f in gc.get_objects():
        if isinstance(f, FunctionType) and f.__code__.co_filename.startswith(str(target.package) + os.sep):
            code = f.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(f)
    return found


def _swap(target: Target, mutant: Mutant, functions: Functions) -> bool:
    """Exchanges the code of the functions of a module in place; False if this cannot be done."""

    def walk(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from walk(constant)

    done = False
    for code in walk(compiled(target.package, mutant)):
        for function in functions.get((code.co_filename, code.co_qualname, code.co_firstlineno), ()):
            if function.__code__ != code:
                if len(function.__code__.co_freevars) != len(code.co_freevars):
                    return False
                function.__code__ = code
                done = True
    return done


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the package with a change."""

    def __init__(self, target: Target, mutant: Mutant) -> None:
        self.name, self.code = target.module(mutant.file), compiled(target.package, mutant)
        self.folder = Path(self.code.co_filename).parent if mutant.file.endswith("__init__.py") else None

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.util.spec_from_loader(
            name, self, origin=self.code.co_filename, is_package=bool(self.folder)
        )
        if spec and self.folder:
            spec.submodule_search_locations = [str(self.folder)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.code.co_filename
        exec(self.code, module.__dict__)


class _Failed(BaseException):
    """A test noticed; pytest takes it for an error of its own and stops."""


class _Watch:
    """A pytest plugin: runs given tests in a given order, ends the process when one fails."""

    def __init__(self, target: Target, tests: Sequence[Test]) -> None:
        self.target, self.order = target, {t.name: t for t in tests}
        self.limits, self.failed = Limits(), ""
        self.limits.set(120, target.clock + 360)  # collection; then every test has its own

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        place = {name: k for k, name in enumerate(self.order)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.limits.set(*_allowed(self.target, self.order[nodeid]))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = report.nodeid
            raise _Failed

    pytest_collectreport = pytest_runtest_logreport


def _scratch(target: Target, mutant: Mutant, tests: Sequence[Test], files: Sequence[str]) -> str:
    tests = sorted(tests, key=lambda t: t.seconds)

    def run() -> str:
        watch = _Watch(target, tests)
        sys.meta_path.insert(0, _Changed(target, mutant))
        code = _pytest(target, files, watch)
        if code in (0, 5):
            return "survived"
        return f"killed by {watch.failed or f'exit code {code}'}"

    return child(run)
