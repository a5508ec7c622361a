"""Mutation test of the checker: is there a test that notices when one check is gone?

    python bench/mutate_checker.py                               every mutant of checker/
    python bench/mutate_checker.py --sample 60 --seed 1          a sample of all mutants
    python bench/mutate_checker.py --kind check --file kernel    every deleted check of kernel.py

A mutant is the checker with one change of its syntax tree:

    check       a statement that is a `raise` or a call, such as `need(...)`, is deleted
    clause      one operand of `and` or `or` is dropped
    condition   the condition of an `if`, a conditional expression or a comprehension is negated
    bound       `<` and `<=`, `>` and `>=` are exchanged
    operator    `and` and `or`, `==` and `!=`, `in` and `not in` are exchanged
    number      an integer literal grows by one

What survives is a missing test or a change without effect on any verdict; docs/mutation.md explains the
latter one by one, and this program counts what is not explained there.

How it is fast. A first process imports and collects the tests once, runs them once to learn which lines of
checker/ each of them executes and how long it takes, and then forks a child per mutant: the child exchanges
the code of the changed function in place and runs the tests that execute the changed statement, quickest
first, until one fails. What survives this, or changes what runs at import, is tried again from scratch: a
child of a process that has imported neither checker nor tests loads the changed module and lets pytest
collect anew. A test that takes ten times its usual time is a hang, which counts as noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHECKER = ROOT / "checker"
EXPLAINED = ROOT / "docs" / "mutation.md"
TESTS = ("tests/checker", "tests/test_forged.py")
#: Those that notice most of what goes wrong at import, to be collected alone at first.
FIRST = tuple(f"tests/checker/{name}.py" for name in (
    "test_documents", "test_kernel", "rules/test_two_texts", "refuting/test_intervals"))
#: These read large plans, which takes longer than it tells.
SKIPPED = "not shipped_plans"
WARM = ("pytest", "_pytest.assertion.rewrite", "hypothesis", "z3", "cvc5", "numpy", "networkx", "click",
        "click.testing", "jsonschema", "orchestrator.engine", "orchestrator.solving", "smtlib_emit",
        "certificates.plan.reading", "trainverify")
EXCHANGED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And}
KINDS = ("check", "clause", "condition", "bound", "operator", "number")

# Mutants ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change: the number of a node in the walk over a file, and which operator of it.

    `first` and `last` are the lines of the statement (of its head, if it has a body); `inside` is the
    function, empty for what runs at import.
    """

    file: str
    line: int
    kind: str
    node: int
    part: int
    first: int
    last: int
    inside: str
    source: str
    nth: int = 0

    @property
    def key(self) -> str:
        """Names the mutant without a line number, which any change above it would make stale."""
        return key(self.file, self.inside, self.kind, self.source, self.nth)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}"


def key(file: str, inside: str, kind: str, source: str, nth: int) -> str:
    return f"{file} {inside} {kind} `{source}`" + (f" {nth}" if nth else "")


def sites(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Kind, part and a description of every change of one node."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "check", 0, ast.unparse(node)
    if isinstance(node, ast.If | ast.IfExp):
        yield "condition", 0, f"if {ast.unparse(node.test)}"
    if isinstance(node, ast.comprehension):
        yield from (("condition", k, f"if {ast.unparse(test)}") for k, test in enumerate(node.ifs))
    if isinstance(node, ast.Compare):
        for k, op in enumerate(node.ops):
            if type(op) in EXCHANGED or type(op) in SWAPPED:
                what = f"{ast.unparse(node)}, operator {k + 1}" if len(node.ops) > 1 else ast.unparse(node)
                yield "bound" if type(op) in EXCHANGED else "operator", k, what
    if isinstance(node, ast.BoolOp):
        yield "operator", 0, ast.unparse(node)
        yield from (("clause", k, f"{ast.unparse(value)} of {ast.unparse(node)}")
                    for k, value in enumerate(node.values))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number", 0, str(node.value)


def negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def mutated(tree: ast.Module, mutant: Mutant) -> ast.Module:
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[mutant.node]
    match mutant.kind, node:
        case "number", ast.Constant(value=int() as value):
            node.value = value + 1
        case "condition", ast.If() | ast.IfExp():
            node.test = negated(node.test)
        case "condition", ast.comprehension():
            node.ifs[mutant.part] = negated(node.ifs[mutant.part])
        case _, ast.Compare():
            kind = type(node.ops[mutant.part])
            node.ops[mutant.part] = (EXCHANGED | SWAPPED)[kind]()  # type: ignore[call-overload]
        case "operator", ast.BoolOp():
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case "clause", ast.BoolOp():
            rest = [v for k, v in enumerate(node.values) if k != mutant.part]
            node.values = rest * (2 if len(rest) == 1 else 1)  # `a and a` is `a`
        case _:
            for parent in ast.walk(tree):
                for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                    if isinstance(body, list) and node in body:
                        body[body.index(node)] = ast.copy_location(ast.Pass(), node)
    return ast.fix_missing_locations(tree)


def within(path: Path) -> str:
    """The name of a module: its path in checker/."""
    return path.relative_to(CHECKER).as_posix()


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((CHECKER / file).read_text(encoding="utf-8"))


def compiled(mutant: Mutant) -> CodeType:
    tree = mutated(parsed(mutant.file), mutant)
    return compile(tree, str(CHECKER / mutant.file), "exec", dont_inherit=True)


def places(tree: ast.Module) -> dict[ast.AST, tuple[int, int, str]]:
    """Of every node the lines of its statement and the function around it."""
    found: dict[ast.AST, tuple[int, int, str]] = {}

    def visit(node: ast.AST, span: tuple[int, int], names: tuple[str, ...], inside: str) -> None:
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            span = node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0
        found[node] = (*span, inside)
        names = (*names, node.name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else names
        for child in ast.iter_child_nodes(node):
            own = isinstance(node, ast.FunctionDef) and child in node.body
            visit(child, span, names, ".".join(names) if own else inside)

    visit(tree, (0, 0), (), "")
    return found


def mutants(files: Sequence[Path]) -> list[Mutant]:
    """All of them, by kind, file and line."""
    found = []
    for path in files:
        tree = parsed(within(path))
        place, same = places(tree), Counter[tuple[str, str, str]]()
        statements = path.read_text(encoding="utf-8").splitlines()
        for number, node in enumerate(ast.walk(tree)):
            for kind, part, what in sites(node):
                first, last, inside = place[node]
                line = getattr(node, "lineno", first)
                if kind == "number":
                    what += f" of {statements[line - 1].strip()}"
                what = " ".join(what.split()).replace("|", "¦").replace("`", "'")[:160]
                found.append(Mutant(within(path), line, kind, number, part, first, last, inside, what,
                                    same[inside, kind, what]))
                same[inside, kind, what] += 1
    return sorted(found, key=lambda m: (KINDS.index(m.kind), m.file, m.line, m.node, m.part))


ROW = re.compile(r"\| ([\w/]+\.py):\d+ ([\w.]*) \| (\w+) \| (`.*`) \| (\d+) \| (.+) \|")


def explained() -> dict[str, str]:
    """Keys of the mutants that docs/mutation.md explains, with the reason: the rows of its tables."""
    text = EXPLAINED.read_text(encoding="utf-8") if EXPLAINED.exists() else ""
    rows = [found.groups() for found in map(ROW.fullmatch, text.splitlines()) if found]
    return {key(file, inside, kind, source[1:-1], int(nth)): why
            for file, inside, kind, source, nth, why in rows}


def row(mutant: Mutant, why: str) -> str:
    place = f"{mutant.file}:{mutant.line} {mutant.inside}"
    return f"| {place} | {mutant.kind} | `{mutant.source}` | {mutant.nth} | {why} |"


def renumber(found: Sequence[Mutant]) -> int:
    """Writes the rows of docs/mutation.md again, with the lines of the day; how many have no mutant now."""
    known, now, stale = explained(), {m.key: m for m in found}, 0
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        if match := ROW.fullmatch(line):
            file, inside, kind, source, nth, _ = match.groups()
            name = key(file, inside, kind, source[1:-1], int(nth))
            if name in now:
                lines[i] = row(now[name], known[name])
            else:
                stale += 1
    EXPLAINED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return stale


# Children ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """What one run of a test showed: how long it takes and the lines of checker/ that it executes."""

    name: str
    seconds: float
    lines: dict[str, list[int]]

    def executes(self, mutant: Mutant) -> bool:
        if not mutant.inside:
            return mutant.file in self.lines
        return any(mutant.first <= line <= mutant.last for line in self.lines.get(mutant.file, ()))

    def limit(self) -> float:
        return 3 + 10 * self.seconds


def child(work: Callable[[], str]) -> str:
    """What `work` says in a forked child; `hung` or `killed by a crash` if it cannot."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        text = "broken"
        try:
            os.close(read)
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(quiet, number)
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            text = work()
        except SystemExit:
            text = "killed by an exit"
        except BaseException as error:
            text = f"broken: {error!r}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "hung" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "killed by a crash"
    if said.startswith("broken"):
        raise SystemExit(said)
    return said or "killed by an exit"


def limited(seconds: float) -> None:
    """The system ends the process after so much time of its own, or three times as much on the clock."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 5 + 3 * seconds)


class Watch:
    """A pytest plugin: runs given tests in a given order, ends the process when one fails."""

    def __init__(self, order: dict[str, Test], fail: Callable[[str], None]) -> None:
        self.order, self.fail = order, fail

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order),
                          key=lambda i: list(self.order).index(i.nodeid))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        limited(self.order[nodeid].limit())

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid)


class Failed(BaseException):
    """A test noticed; passes through pytest, which stops."""


def swap(mutant: Mutant, functions: dict[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Exchanges the code of the functions of a module in place; False if this cannot be done."""
    def walk(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from walk(constant)

    done = False
    for code in walk(compiled(mutant)):
        for function in functions.get((code.co_filename, code.co_qualname, code.co_firstlineno), ()):
            if function.__code__ != code:
                if len(function.__code__.co_freevars) != len(code.co_freevars):
                    return False
                function.__code__ = code
                done = True
    return done


class Lines:
    """The lines of checker/ that are executed while it is switched on. A function that shows no new line for
    `PATIENCE` calls is watched no longer, which can only hide that a test executes a line."""

    PATIENCE = 200

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}
        self.dull: dict[CodeType, int] = {}
        self.prefix = str(CHECKER) + os.sep

    def start(self) -> None:
        self.seen.clear()
        self.dull.clear()
        sys.settrace(self._called)

    def stop(self) -> dict[str, list[int]]:
        sys.settrace(None)
        return {within(Path(name)): sorted(lines) for name, lines in self.seen.items()}

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self.prefix) or self.dull.get(code, 0) > self.PATIENCE:
            return None
        self.dull[code] = self.dull.get(code, 0) + 1
        lines = self.seen.setdefault(code.co_filename, set())

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                self.dull[code] = 0
            return local

        return local


class Collected:
    """A pytest plugin that takes the place of the run: measures all tests, then tries every mutant."""

    def __init__(self, found: Sequence[Mutant], tell: Callable[[Any], None], jobs: int, longest: float,
                 lines: Lines) -> None:
        self.found, self.tell, self.jobs, self.longest, self.lines = found, tell, jobs, longest, lines
        self.reports: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    def pytest_runtestloop(self, session: Any) -> bool:
        at_import = Test("import", 0, self.lines.stop())
        items = {item.nodeid: item for item in session.items}
        session.config._tmp_path_factory.getbasetemp()
        with tempfile.NamedTemporaryFile("r") as file:
            said = child(lambda: self.measure(list(items.values()), file.name))
            if said != "done":
                raise SystemExit(f"the tests fail without a change: {said}")
            tests = [Test(*t) for t in json.load(file)]
        self.tell({"tests": [[t.name, t.seconds, t.lines] for t in [at_import, *tests]]})
        functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        for f in gc.get_objects():
            if isinstance(f, FunctionType) and f.__code__.co_filename.startswith(str(CHECKER)):
                key = f.__code__.co_filename, f.__code__.co_qualname, f.__code__.co_firstlineno
                functions.setdefault(key, []).append(f)
        gc.collect()
        gc.freeze()

        killers = Counter[tuple[str, str]]()

        def attempt(number: int) -> None:
            mutant = self.found[number]
            chosen = [t for t in tests if t.executes(mutant)]
            chosen.sort(key=lambda t: (0.002 + t.seconds) / (1 + killers[mutant.file, t.name]))
            said = "again"
            if mutant.inside:
                said = child(lambda: self.quick(mutant, chosen, items, functions))
            if said == "survived" and at_import.executes(mutant):
                said = "again"
            killers[mutant.file, said.removeprefix("killed by ")] += 1
            self.tell({"number": number, "said": said})

        spread(self.jobs, [n for n in range(len(self.found))], attempt)
        return True

    def run(self, item: Any, after: Any) -> bool:
        """Does the test pass?"""
        self.reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return not any(r.failed for r in self.reports)

    def measure(self, items: list[Any], name: str) -> str:
        result = []
        for item in items:
            start = time.perf_counter()
            if not self.run(item, None):
                return str(item.nodeid)
            seconds = time.perf_counter() - start
            if seconds > self.longest:
                continue
            self.lines.start()
            good = self.run(item, None)
            lines = self.lines.stop()
            if not good:
                return f"{item.nodeid} when traced"
            result.append([item.nodeid, seconds, lines])
        Path(name).write_text(json.dumps(result), encoding="utf-8")
        return "done"

    def quick(self, mutant: Mutant, tests: list[Test], items: dict[str, Any],
              functions: dict[tuple[str, str, int], list[FunctionType]]) -> str:
        if not swap(mutant, functions):
            return "again"
        for i, test in enumerate(tests):
            limited(test.limit())
            after = items[tests[i + 1].name] if i + 1 < len(tests) else None
            if not self.run(items[test.name], after):
                return f"killed by {test.name}"
        return "survived"


def spread(jobs: int, numbers: list[int], work: Callable[[int], None]) -> None:
    """Calls `work` for all numbers in so many processes."""
    if jobs == 1:
        for number in numbers:
            work(number)
        return
    pids = []
    for k in range(jobs):
        pid = os.fork()
        if not pid:
            try:
                for number in numbers[k::jobs]:
                    work(number)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


# From scratch -----------------------------------------------------------------------------------------------


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the checker with a change."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.code = f"checker.{mutant.file[:-3].replace('/', '.')}", compiled(mutant)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self, origin=self.code.co_filename) if (
            name == self.name) else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.code.co_filename
        exec(self.code, module.__dict__)


def options(folder: str, files: Sequence[str]) -> list[str]:
    return ["-q", "-m", "not slow", "-k", SKIPPED, "-p", "no:cacheprovider", f"--basetemp={folder}", *files]


def scratch(mutant: Mutant, tests: list[Test], files: Sequence[str]) -> str:
    import pytest

    folder = tempfile.mkdtemp(prefix="mutant-")
    failed: list[str] = []

    def fail(name: str) -> None:
        failed.append(name)
        raise Failed

    def run() -> str:
        limited(120)  # collection; then every test has its own limit
        sys.meta_path.insert(0, Changed(mutant))
        try:
            code = pytest.main(options(folder, files), plugins=[Watch({t.name: t for t in tests}, fail)])
        except Failed:
            code = 1
        if failed:
            return f"killed by {failed[0]}"
        return "survived" if code in (0, 5) else f"killed by exit code {code}"

    try:
        return child(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def warm() -> None:
    """Imports what the tests need, but neither checker nor tests, and makes hypothesis repeat itself."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in WARM:
        importlib.import_module(name)
    from hypothesis import Phase, settings

    settings.register_profile("mutation", derandomize=True, database=None, deadline=None,
                              phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutation")


def judge(found: Sequence[Mutant], jobs: int, longest: float, say: Callable[[str], None]) -> list[str]:
    """A verdict on each mutant: `killed by TEST`, `hung` or `survived`."""
    import pytest

    warm()
    verdicts, begin = [""] * len(found), time.monotonic()
    at_import: list[Test] = []
    tests: list[Test] = []

    def listen(work: Callable[[Callable[[Any], None]], None]) -> None:
        """Reads what a child tells, line by line."""
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(read)
                work(lambda item: os.write(write, (json.dumps(item) + "\n").encode()) and None)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            for line in pipe:
                item = json.loads(line)
                if "tests" in item:
                    at_import[:], tests[:] = [Test(*item["tests"][0])], [Test(*t) for t in item["tests"][1:]]
                    say(f"{time.monotonic() - begin:.1f} s {len(tests)} tests of "
                        f"{sum(t.seconds for t in tests):.1f} s")
                else:
                    verdicts[item["number"]] = item["said"]
                    if item["said"] != "again":
                        done = sum(v not in ("", "again") for v in verdicts)
                        say(f"{time.monotonic() - begin:.1f} s {done}/{len(found)} {item['said']} "
                            f"{found[item['number']]}")
        os.waitpid(pid, 0)

    def first(tell: Callable[[Any], None]) -> None:
        folder = tempfile.mkdtemp(prefix="mutants-")
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1)
        try:
            lines = Lines()
            lines.start()
            pytest.main(options(folder, TESTS), plugins=[Collected(found, tell, jobs, longest, lines)])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    listen(first)
    if not tests:
        raise SystemExit("the tests fail without a change")

    def second(tell: Callable[[Any], None]) -> None:
        def again(number: int) -> None:
            mutant = found[number]
            runs = [t for t in tests if t.executes(mutant)]
            chosen = tests if not mutant.inside or at_import[0].executes(mutant) else runs
            said = scratch(mutant, [t for t in chosen if t.name.startswith(FIRST)], FIRST)
            tell({"number": number, "said": scratch(mutant, chosen, TESTS) if said == "survived" else said})

        spread(jobs, [n for n, v in enumerate(verdicts) if v in ("", "again")], again)

    listen(second)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many mutants, drawn by --seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", type=Path, help="only what this output of a former run says survived")
    parser.add_argument("--file", help="only this module, such as kernel")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--longest", type=float, default=60, metavar="SECONDS",
                        help="without tests that take longer")
    parser.add_argument("--recheck", action="store_true", help="try also what docs/mutation.md explains")
    parser.add_argument("--renumber", action="store_true",
                        help="only put the lines of the day into docs/mutation.md")
    given = parser.parse_args()
    if given.renumber:
        stale = renumber(mutants(sorted(CHECKER.rglob("*.py"))))
        raise SystemExit(f"{stale} rows explain nothing" if stale else 0)
    found = [m for m in mutants(sorted(CHECKER.rglob(f"{given.file or '*'}.py")))
             if given.kind in (None, m.kind)]
    if given.only:
        lines = [line.split(" ", 2) for line in given.only.read_text(encoding="utf-8").splitlines()]
        keys = {line[2] for line in lines if line[0] == "survived:"}
        found = [m for m in found if m.key in keys]
    if given.sample is not None:
        found = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    known = {} if given.recheck else explained()
    tried = [m for m in found if m.key not in known]
    told = judge(tried, given.jobs, given.longest, lambda text: print(text, file=sys.stderr, flush=True))
    verdicts = {m.key: "explained" for m in found} | {
        m.key: said for m, said in zip(tried, told, strict=True)}
    counts: Counter[tuple[str, str]] = Counter()
    for mutant in found:
        word = verdicts[mutant.key].split()[0]
        if word == "survived":
            print(f"survived: {mutant}", flush=True)
        counts[mutant.kind, word] += 1
    print(f"{'kind':10}{'all':>6}{'killed':>8}{'hung':>6}{'explained':>11}{'survived':>10}{'killed/all':>12}"
          f"{'/not explained':>16}")
    for kind in (*(k for k in KINDS if any(c == k for c, _ in counts)), "all"):
        row = [sum(n for (k, w), n in counts.items() if kind in (k, "all") and w == word)
               for word in ("killed", "hung", "explained", "survived")]
        total, noticed = sum(row), row[0] + row[1]
        print(f"{kind:10}{total:6}{row[0]:8}{row[1]:6}{row[2]:11}{row[3]:10}{noticed / max(total, 1):12.1%}"
              f"{noticed / max(total - row[2], 1):16.1%}")
    raise SystemExit(1 if any(w == "survived" for _, w in counts) else 0)


if __name__ == "__main__":
    main()
