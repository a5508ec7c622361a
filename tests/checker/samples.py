"""Plans and bundles written by hand, with no help from the emitter, for the tests of the checker."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checker import kernel
from checker.errors import CheckerError, Malformed, Rejected, Undecided
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from checker.reporting import reports
from checker.rules.algebra import Algebra
from checker.rules.model import Model
from checker.rules.widths import check_widths

#: For laws that look at terms only.
NO_PLAN: Any = None


def refuses(number: int, reason: str, at: str = "") -> Any:
    """An obligation fails for this reason (a pattern), if asked at this place."""
    return pytest.raises(Rejected, match=rf"^obligation {number} .*{at}: .*{reason}")


def proved(examined: kernel.Examined) -> set[str]:
    """Outputs that are PROVED if every solver refutes every file."""
    answers = {s: dict.fromkeys(examined.files, "unsat") for s in ("a", "b")}
    return {o.plan for o in kernel.conclude(examined, answers, 2, {}).outputs if o.verdict == "PROVED"}


@contextmanager
def refused(number: int | str, reason: str) -> Iterator[None]:
    """What happens inside fails for this reason: an obligation of this number, or a file is ``malformed``."""
    with pytest.raises(CheckerError) as error:
        yield
    assert reason in str(error.value)
    if isinstance(error.value, Rejected):
        assert error.value.number == number
    else:
        assert isinstance(error.value, Malformed) and number == "malformed"


def dump(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def op(result: str, name: str, operands: list[str], type_: str, **attrs: Any) -> list[Any]:
    return [result, name, operands, type_, attrs, None]


def program(inputs: list[list[str]], ops: list[Any], outputs: list[list[str]]) -> dict[str, Any]:
    return {"inputs": inputs, "ops": ops, "outputs": outputs}


def relation(
    spec: str, plan: str, *pieces: dict[str, Any], coef: str = "1", reduce: Any = None
) -> dict[str, Any]:
    return {"spec": spec, "plan": plan, "coef": coef, "reduce": reduce, "pieces": list(pieces)}


def piece(cls: str, sizes: list[int], plan: list[Any], spec: list[Any]) -> dict[str, Any]:
    return {"class": cls, "sizes": sizes, "plan": plan, "spec": spec}


def plan_of(
    mesh: list[list[Any]],
    spec: Any,
    classes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    groups: Any = None,
    ranges: Any = None,
    given: Any = None,
) -> dict[str, Any]:
    return ({"given": given} if given else {}) | {
        "format": "trainverify-plan",
        "version": 1,
        "name": "sample",
        "mesh": mesh,
        "groups": groups or {},
        "sources": ["model.py"],
        "specification": spec,
        "classes": classes,
        "inputs": inputs,
        "outputs": outputs,
        "ranges": ranges or {},
        "provenance": {"tool": "by hand"},
    }


def z(i: int) -> dict[str, int]:
    return {f"z{i}": 1}


HEAD = """(set-info :smt-lib-version 2.6)
(set-logic {logic})
(set-info :source |TrainVerify|)
(set-info :license "https://creativecommons.org/licenses/by/4.0/")
(set-info :category "industrial")
(set-info :status unsat)
"""


BAG = ("bagit.txt", "bag-info.txt", "manifest-sha256.txt", "tagmanifest-sha256.txt")


def digests(data: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}


def listing(data: dict[str, bytes]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests(data).items())).encode()


def seal(folder: Path) -> None:
    """The manifests of what is there, as a forger would write them."""
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    payload = {name: data for name, data in files.items() if name.startswith("data/")}
    tags = {name: files[name] for name in BAG[:2]} | {BAG[2]: listing(payload)}
    (folder / BAG[2]).write_bytes(tags[BAG[2]])
    (folder / BAG[3]).write_bytes(listing(tags))


def answers(folder: Path, solver: str, lines: str, version: str = "1") -> str:
    """A file of answers as `run.sh` writes it."""
    manifest = (folder / "manifest-sha256.txt").read_text().splitlines(keepends=True)
    digest = hashlib.sha256("".join(x for x in manifest if " data/obligations/" in x).encode()).hexdigest()
    head = f"# trainverify answers 1\n# solver {solver}\n# version {version}\n# obligations {digest}\n"
    return head + lines


@dataclass
class Bundle:
    """A bundle as data; `write` seals it (all digests fresh) into a folder: a bag, or one of version 1."""

    plan: dict[str, Any]
    proof: dict[str, Any]
    files: dict[str, str]
    verdicts: list[dict[str, str]]
    status: str = "unsat"
    extra: dict[str, bytes] = field(default_factory=dict)
    version: int = 2

    def copy(self) -> Bundle:
        return copy.deepcopy(self)

    def members(self) -> dict[str, bytes]:
        """Every file by its name, a bag's payload without `data/`."""
        data = {"plan.json": dump(self.plan), "proof.json": dump(self.proof)}
        data |= {f"obligations/{n}.smt2": t.encode() for n, t in self.files.items()}
        data |= self.extra
        manifest = {
            "format": "trainverify-bundle",
            "version": self.version,
            "generator": "by hand",
            "status": self.status,
            "verdicts": self.verdicts,
        }
        if self.version == 1:
            return data | {"manifest.json": dump(manifest | {"members": digests(data)})}
        data["manifest.json"] = dump(manifest | {"solvers": {}})
        tags = {
            "bagit.txt": b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n",
            "bag-info.txt": b"",
            "manifest-sha256.txt": listing({f"data/{n}": d for n, d in data.items()}),
        }
        return data | tags | {"tagmanifest-sha256.txt": listing(tags)}

    def write(self, folder: Path) -> Path:
        """The files; a bag has reports too, as the checker writes them."""
        for name, data in self.members().items():
            place = folder / name if self.version == 1 or name in BAG else folder / "data" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if self.version > 1:
            for name, text in reports(folder)[1].items():
                (folder / "data" / name).write_text(text)
            seal(folder)
        return folder

    def examine(self) -> kernel.Examined:
        data = self.members()
        return kernel.examine(
            read_manifest(data),
            read_plan(data["plan.json"]),
            read_proof(data["proof.json"]),
            data,
        )


def row_parallel() -> Bundle:
    """y = x @ w with both operands cut along the contracting dimension over two ranks, then an all-reduce."""
    spec = program(
        [["x", "f32[4,6]"], ["w", "f32[6,8]"]],
        [
            op(
                "%0",
                "dot_general",
                ["x", "w"],
                "f32[4,8]",
                lhs_batch=[],
                rhs_batch=[],
                lhs_contract=[1],
                rhs_contract=[0],
            )
        ],
        [["y", "%0"]],
    )
    local = program(
        [["x", "f32[4,3]"], ["w", "f32[3,8]"]],
        [
            op(
                "%0",
                "dot_general",
                ["x", "w"],
                "f32[4,8]",
                lhs_batch=[],
                rhs_batch=[],
                lhs_contract=[1],
                rhs_contract=[0],
            ),
            op("%1", "all_reduce", ["%0"], "f32[4,8]", group="g", kind="add", seq=0),
        ],
        [["y", "%1"]],
    )
    plan = plan_of(
        [["tp", 2]],
        spec,
        [{"name": "c0", "box": {"tp": [0, 2]}, "program": local}],
        [
            relation("x", "x", piece("c0", [4, 3], [z(0), z(1)], [z(0), {"tp": 3, "z1": 1}])),
            relation("w", "w", piece("c0", [3, 8], [z(0), z(1)], [{"tp": 3, "z0": 1}, z(1)])),
        ],
        [relation("y", "y", piece("c0", [4, 8], [z(0), z(1)], [z(0), z(1)]))],
        {"g": {"axes": ["tp"], "ranks": [[0, 1]]}},
        given=["w", "x"],
    )
    red = {"kind": "add", "axes": ["tp"], "of": ["c0:%0"]}
    tp, i, j = ["tp", 0, 2], ["z0", 0, 4], ["z1", 0, 8]
    facts = [
        {
            "lhs": "c0:x",
            "rhs": "s:x",
            "coef": "1",
            "symbols": [tp, ["z0", 0, 4], ["z1", 0, 3]],
            "lhs_index": [{"tp": 1}, z(0), z(1)],
            "rhs_index": [z(0), {"tp": 3, "z1": 1}],
            "by": {"input": 0},
        },
        {
            "lhs": "c0:w",
            "rhs": "s:w",
            "coef": "1",
            "symbols": [tp, ["z0", 0, 3], ["z1", 0, 8]],
            "lhs_index": [{"tp": 1}, z(0), z(1)],
            "rhs_index": [{"tp": 3, "z0": 1}, z(1)],
            "by": {"input": 1},
        },
        {
            "lhs": red,
            "rhs": "s:%0",
            "coef": "1",
            "symbols": [i, j],
            "lhs_index": [z(0), z(1)],
            "rhs_index": [z(0), z(1)],
            "by": None,
        },
        {
            "lhs": "c0:%1",
            "rhs": "s:%0",
            "coef": "1",
            "symbols": [tp, i, j],
            "lhs_index": [{"tp": 1}, z(0), z(1)],
            "rhs_index": [z(0), z(1)],
            "by": {"output": 0},
        },
    ]
    i, j, t, k, tk = ([[0, [c]]] for c in ("i", "j", "t", "k", "t k"))  # type: ignore[assignment]
    tk = [[0, ["t", "k"]]]
    one = [0, 0]
    algebra = {
        "kind": "algebra",
        "goal": 2,
        "title": "row-parallel product",
        "classes": [["i", 4, 1], ["j", 8, 1], ["t", 2, 1], ["k", 3, 1]],
        "trees": [
            [red, [i, j]],
            ["c0:%0", [t, i, j]],
            ["c0:x", [t, i, k]],
            ["c0:w", [t, k, j]],
            ["s:%0", [i, j]],
            ["s:x", [i, tk]],
            ["s:w", [tk, j]],
        ],
        "goal_at": [["i"], ["j"]],
        "cases": [
            {
                "reps": [[0], [0]],
                "file": "0001",
                "premises": [
                    {"k": "def", "e": [red, [one, one]]},
                    {"k": "def", "e": ["c0:%0", [one, one, one]]},
                    {"k": "hyp", "fact": 0, "at": [{"t.0": 1}, {"i.0": 1}, {"k.0": 1}], "defines": "lhs"},
                    {"k": "hyp", "fact": 1, "at": [{"t.0": 1}, {"k.0": 1}, {"j.0": 1}], "defines": "lhs"},
                    {"k": "def", "e": ["s:%0", [one, one]]},
                    {
                        "k": "law",
                        "schema": "ring",
                        "lhs": ["*", "2", ["*", "3", PRODUCT]],
                        "rhs": ["*", "6", PRODUCT],
                    },
                ],
            }
        ],
    }
    layout = {
        "kind": "layout",
        "goal": 3,
        "title": "all-reduce",
        "file": "0002",
        "symbols": [],
        "premises": [
            {"k": "def", "t": "c0:%1", "at": [{"tp": 1}, z(0), z(1)], "arg": None},
            {"k": "hyp", "facts": [2], "at": [z(0), z(1)], "lift": [], "kind": "add"},
        ],
    }
    files = {
        "0001": HEAD.format(logic="QF_UFLRA")
        + """; row-parallel product
; e0 = add over tp of (c0:%0 dot_general f32[4,8] ranks tp 0..1) at [p0:0, p0:0]
(declare-fun e0 () Real)
; e1 = c0:%0 dot_general f32[4,8] ranks tp 0..1 at [p0:0, p0:0, p0:0]
(declare-fun e1 () Real)
; e2 = c0:x input f32[4,3] ranks tp 0..1 at [p0:0, p0:0, p0:0]
(declare-fun e2 () Real)
; e3 = c0:w input f32[3,8] ranks tp 0..1 at [p0:0, p0:0, p0:0]
(declare-fun e3 () Real)
; e4 = s:x input f32[4,6] at [p0:0, p0:0.0]
(declare-fun e4 () Real)
; e5 = s:w input f32[6,8] at [p0:0.0, p0:0]
(declare-fun e5 () Real)
; e6 = s:%0 dot_general f32[4,8] at [p0:0, p0:0]
(declare-fun e6 () Real)
(declare-fun mul (Real Real) Real)
(assert (! (= e0 (* 2.0 e1)) :named def.1))
(assert (! (= e1 (* 3.0 (mul e2 e3))) :named def.2))
(assert (! (= e2 e4) :named hyp.3))
(assert (! (= e3 e5) :named hyp.4))
(assert (! (= e6 (* 6.0 (mul e4 e5))) :named def.5))
(assert (! (= (* 2.0 (* 3.0 (mul e4 e5))) (* 6.0 (mul e4 e5))) :named law.6))
(assert (! (not (= e0 e6)) :named goal))
(check-sat)
(exit)
""",
        "0002": HEAD.format(logic="QF_UFLIA")
        + """; all-reduce
(declare-sort Value 0)
(declare-fun tp () Int)
(declare-fun z0 () Int)
(declare-fun z1 () Int)
; t0 = c0:%1 all_reduce f32[4,8] ranks tp 0..1
(declare-fun t0 (Int Int Int) Value)
; t1 = add over tp of (c0:%0 dot_general f32[4,8] ranks tp 0..1)
(declare-fun t1 (Int Int) Value)
; t2 = s:%0 dot_general f32[4,8]
(declare-fun t2 (Int Int) Value)
(assert (! (= (t0 tp z0 z1) (t1 z0 z1)) :named def.1))
(assert (! (= (t1 z0 z1) (t2 z0 z1)) :named hyp.2))
(assert (! (not (= (t0 tp z0 z1) (t2 z0 z1))) :named goal))
(check-sat)
(exit)
""",
    }
    return Bundle(
        plan,
        {"format": "trainverify-proof", "version": 1, "facts": facts, "stages": [algebra, layout]},
        files,
        [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}],
    )


PRODUCT = ["mul", ["e", "s:x", [[0, 0], [0, 0, 0]]], ["e", "s:w", [[0, 0, 0], [0, 0]]]]


def shards() -> Bundle:
    """Layout only: rows cut over two ranks (two classes), gathered and flattened."""
    spec = program([["x", "f32[6,2]"]], [op("%0", "reshape", ["x"], "f32[12]")], [["y", "%0"]])
    local = program(
        [["x", "f32[3,2]"]],
        [
            op("%0", "all_gather", ["x"], "f32[6,2]", group="g", dim=0, seq=3),
            op("%1", "reshape", ["%0"], "f32[12]"),
        ],
        [["y", "%1"]],
    )
    classes = [{"name": f"c{r}", "box": {"dp": [r, r + 1]}, "program": local} for r in range(2)]
    plan = plan_of(
        [["dp", 2]],
        spec,
        classes,
        [
            relation(
                "x",
                "x",
                *(piece(f"c{r}", [3, 2], [z(0), z(1)], [{"dp": 3, "z0": 1}, z(1)]) for r in range(2)),
            )
        ],
        [relation("y", "y", *(piece(f"c{r}", [12], [z(0)], [z(0)]) for r in range(2)))],
        {"g": {"axes": ["dp"], "ranks": [[0, 1]]}},
        given=["x"],
    )
    facts = [
        {
            "lhs": f"c{r}:x",
            "rhs": "s:x",
            "coef": "1",
            "symbols": [["dp", r, r + 1], ["z0", 0, 3], ["z1", 0, 2]],
            "lhs_index": [{"dp": 1}, z(0), z(1)],
            "rhs_index": [{"dp": 3, "z0": 1}, z(1)],
            "by": {"input": 0},
        }
        for r in range(2)
    ]
    facts += [
        {
            "lhs": f"c{r}:%1",
            "rhs": "s:%0",
            "coef": "1",
            "symbols": [["dp", r, r + 1], ["z0", 0, 12]],
            "lhs_index": [{"dp": 1}, z(0)],
            "rhs_index": [z(0)],
            "by": {"output": 0},
        }
        for r in range(2)
    ]
    stages = []
    for r in range(2):
        at, two, q = [{"dp": 1}, z(0)], [{"dp": 1}, {"q0": 1}, {"q1": 1}], [{"q2": 1}, {"q3": 1}, {"q1": 1}]
        stages.append(
            {
                "kind": "layout",
                "goal": 2 + r,
                "title": "gather and flatten",
                "file": f"000{1 + r}",
                "symbols": [
                    ["q0", 0, 6],
                    ["q1", 0, 2],
                    ["q2", 0, 2],
                    ["q3", 0, 3],
                    ["q4", 0, 6],
                    ["q5", 0, 2],
                ],
                "premises": [
                    {"k": "bound", "sym": "q0"},
                    {"k": "bound", "sym": "q1"},
                    {"k": "bound", "sym": "q2"},
                    {"k": "bound", "sym": "q3"},
                    {"k": "bound", "t": f"c{r}:%1", "at": at, "arg": two, "part": 0},
                    {"k": "def", "t": f"c{r}:%1", "at": at, "arg": two},
                    {"k": "bound", "t": f"c{r}:%0", "at": two, "arg": q, "part": 0},
                    {"k": "def", "t": f"c{r}:%0", "at": two, "arg": q},
                    {"k": "hyp", "facts": [0], "at": q, "lift": [], "kind": "add"},
                    {"k": "hyp", "facts": [1], "at": q, "lift": [], "kind": "add"},
                    {"k": "bound", "sym": "q4"},
                    {"k": "bound", "sym": "q5"},
                    {"k": "bound", "t": "s:%0", "at": [z(0)], "arg": [{"q4": 1}, {"q5": 1}], "part": 0},
                    {"k": "def", "t": "s:%0", "at": [z(0)], "arg": [{"q4": 1}, {"q5": 1}]},
                ],
            }
        )
    stages[1]["premises"][4:6] = stages[1]["premises"][5:3:-1]
    files = {}
    for r in range(2):
        bound, define = ("(= z0 (+ (* 2 q0) q1))", "(= (t0 dp z0) (t1 dp q0 q1))")
        lines = [
            ("bound", "(and (<= 0 q0) (< q0 6))"),
            ("bound", "(and (<= 0 q1) (< q1 2))"),
            ("bound", "(and (<= 0 q2) (< q2 2))"),
            ("bound", "(and (<= 0 q3) (< q3 3))"),
            *([("bound", bound), ("def", define)] if r == 0 else [("def", define), ("bound", bound)]),
            ("bound", "(= q0 (+ (* 3 q2) q3))"),
            ("def", "(= (t1 dp q0 q1) (ite (< q2 1) (t2 q2 q3 q1) (t3 q2 q3 q1)))"),
            ("hyp", "(=> (< q2 1) (= (t2 q2 q3 q1) (t4 (+ (* 3 q2) q3) q1)))"),
            ("hyp", "(=> (<= 1 q2) (= (t3 q2 q3 q1) (t4 (+ (* 3 q2) q3) q1)))"),
            ("bound", "(and (<= 0 q4) (< q4 6))"),
            ("bound", "(and (<= 0 q5) (< q5 2))"),
            ("bound", "(= z0 (+ (* 2 q4) q5))"),
            ("def", "(= (t5 z0) (t4 q4 q5))"),
        ]
        asserts = "".join(f"(assert (! {t} :named {k}.{n}))\n" for n, (k, t) in enumerate(lines, 1))
        files[f"000{1 + r}"] = (
            HEAD.format(logic="QF_UFLIA")
            + f"""; gather and flatten
(declare-sort Value 0)
(declare-fun dp () Int)
(declare-fun z0 () Int)
(declare-fun q0 () Int)
(declare-fun q1 () Int)
(declare-fun q2 () Int)
(declare-fun q3 () Int)
(declare-fun q4 () Int)
(declare-fun q5 () Int)
; t0 = c{r}:%1 reshape f32[12] ranks dp {r}..{r}
(declare-fun t0 (Int Int) Value)
; t1 = c{r}:%0 all_gather f32[6,2] ranks dp {r}..{r}
(declare-fun t1 (Int Int Int) Value)
; t2 = c0:x input f32[3,2] ranks dp 0..0
(declare-fun t2 (Int Int Int) Value)
; t3 = c1:x input f32[3,2] ranks dp 1..1
(declare-fun t3 (Int Int Int) Value)
; t4 = s:x input f32[6,2]
(declare-fun t4 (Int Int) Value)
; t5 = s:%0 reshape f32[12]
(declare-fun t5 (Int) Value)
{asserts}(assert (! (not (= (t0 dp z0) (t5 z0))) :named goal))
(check-sat)
(exit)
"""
        )
    return Bundle(
        plan,
        {"format": "trainverify-proof", "version": 1, "facts": facts, "stages": stages},
        files,
        [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}],
    )


def staged() -> Bundle:
    """y = x + x on two stages and two microbatches: the first stage cuts its rows out, adds and sends, the
    second stacks what it receives."""
    spec = program([["x", "f32[4]"]], [op("%0", "add", ["x", "x"], "f32[4]")], [["y", "%0"]])
    first = program(
        [["x", "f32[4]"]],
        [
            op("%0", "slice", ["x"], "f32[2]", start=[{"mb": 2}], stride=[1]),
            op("%1", "add", ["%0", "%0"], "f32[2]"),
            op("%2", "send", ["%1"], "f32[2]", seq=0, to=[{"mb": 1}, 1]),
        ],
        [],
    )
    last = program(
        [],
        [
            op("%0", "recv", [], "f32[2]", seq=0, **{"from": [{"mb": 1}, 0]}),
            op("%1", "all_gather", ["%0"], "f32[4]", group="runs", dim=0, seq=1),
        ],
        [["y", "%1"]],
    )
    plan = plan_of(
        [["pp", 2]],
        spec,
        [
            {"name": f"c{s}", "box": {"mb": [0, 2], "pp": [s, s + 1]}, "program": body}
            for s, body in enumerate((first, last))
        ],
        [relation("x", "x", piece("c0", [4], [z(0)], [z(0)]))],
        [relation("y", "y", piece("c1", [4], [z(0)], [z(0)]))],
        {"runs": {"axes": ["mb"]}},
        given=["x"],
    )
    plan |= {"version": 2, "time": [["mb", 2]]}
    mb, i = ["mb", 0, 2], ["z0", 0, 4]
    here = [{"mb": 1}, {"pp": 1}, z(0)]
    facts = [
        fact("c0:x", "s:x", [mb, ["pp", 0, 1], i], here, [z(0)]) | {"by": {"input": 0}},
        fact("c1:%1", "s:%0", [mb, ["pp", 1, 2], i], here, [z(0)]) | {"by": {"output": 0}},
    ]
    run, row = {"q0": 1}, {"q1": 1}
    sent, cut = [run, 0, row], {"q0": 2, "q1": 1}
    stage = {
        "kind": "layout",
        "goal": 1,
        "title": "received and stacked",
        "file": "0001",
        "symbols": [["q0", 0, 2], ["q1", 0, 2]],
        "premises": [
            {"k": "bound", "sym": "z0"},
            {"k": "bound", "sym": "q0"},
            {"k": "bound", "sym": "q1"},
            {"k": "bound", "t": "c1:%1", "at": here, "arg": [run, {"pp": 1}, row], "part": 0},
            {"k": "def", "t": "c1:%1", "at": here, "arg": [run, {"pp": 1}, row]},
            {"k": "def", "t": "c1:%0", "at": [run, {"pp": 1}, row], "arg": None},
            {"k": "def", "t": "c0:%1", "at": sent, "arg": None},
            {"k": "def", "t": "c0:%0", "at": sent, "arg": None},
            {"k": "hyp", "facts": [0], "at": [run, 0, cut], "lift": [], "kind": "add"},
            {"k": "def", "t": "s:%0", "at": [z(0)], "arg": None},
        ],
    }
    proof = {"format": "trainverify-proof", "version": 1, "facts": facts, "stages": [stage]}
    verdicts = [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}]
    return forged(Bundle(plan, proof, {}, verdicts))


def sorted_rows() -> Bundle:
    """y = x, of which one rank sorts the rows by key and puts them back."""
    inputs = [["x", "f32[4,2]"], ["keys", "i64[4]"]]
    spec = program(inputs, [], [["y", "x"]])
    local = program(
        inputs,
        [
            op("%0", "sort_rows", ["keys"], "i64[4]", count=4),
            op("%1", "pack", ["x", "%0"], "f32[4,2]"),
            op("%2", "unpack", ["%1", "%0"], "f32[4,2]"),
        ],
        [["y", "%2"]],
    )
    plan = plan_of(
        [["r", 1]],
        spec,
        [{"name": "c0", "box": {"r": [0, 1]}, "program": local}],
        [
            relation("x", "x", piece("c0", [4, 2], [z(0), z(1)], [z(0), z(1)])),
            relation("keys", "keys", piece("c0", [4], [z(0)], [z(0)])),
        ],
        [relation("y", "y", piece("c0", [4, 2], [z(0), z(1)], [z(0), z(1)]))],
        ranges={"keys": [0, 4]},
        given=["keys", "x"],
    ) | {"version": 3}
    symbols = [["r", 0, 1], ["z0", 0, 4], ["z1", 0, 2]]
    here = [{"r": 1}, z(0), z(1)]
    facts = [
        fact("c0:x", "s:x", symbols, here, here[1:]) | {"by": {"input": 0}},
        fact("c0:%2", "s:x", symbols, here, here[1:]) | {"by": {"output": 0}},
    ]
    stage = {
        "kind": "layout",
        "goal": 1,
        "title": "sorted and put back",
        "file": "0001",
        "symbols": [],
        "premises": [
            {"k": "def", "t": "c0:%2", "at": here, "arg": None},
            {"k": "def", "t": "c0:%1", "at": here, "arg": None},
            {"k": "hyp", "facts": [0], "at": here, "lift": [], "kind": "add"},
        ],
    }
    proof = {"format": "trainverify-proof", "version": 1, "facts": facts, "stages": [stage]}
    verdicts = [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}]
    return forged(Bundle(plan, proof, {}, verdicts))


def scheduled() -> Bundle:
    """`staged` with a schedule: each run is cut, added and sent; what is received is waited for at once."""
    bundle = staged()
    lanes: list[dict[str, Any]] = [
        {
            "name": "first",
            "box": {"pp": [0, 1]},
            "events": [e for k in range(2) for e in (["run", "f", k], ["now", "pp", [["send", 0, k]]])],
            "slots": [],
        },
        {
            "name": "last",
            "box": {"pp": [1, 2]},
            "events": [["now", "pp", [["recv", 0, k]]] for k in range(2)],
            "slots": [["c1", "%0", 0, 2], ["c1", "%1", 2, 1]],
        },
    ]
    bundle.plan["schedule"] = {"segments": {"c0": {"f": [[0, 2]]}}, "once": {}, "lanes": lanes}
    bundle.proof["when"] = {"times": {"first": [0, 1, 2, 3], "last": [1, 3]}}
    return bundle


def one_case(
    premises: list[Any],
    *,
    spec: Any,
    local: Any = None,
    mesh: int = 1,
    facts: tuple[Any, ...] = (),
    classes: tuple[Any, ...] = (("i", 4, 1),),
    trees: dict[str, Any] | None = None,
    reduced: tuple[Any, ...] = (),
) -> Algebra:
    """An algebra stage with one case, checked with its widths. It proves `g = g` of a scalar input `g`, which
    `spec` has, so that only its premises can be at fault. The plan is one class `c0` over the axis `r`."""
    goal = {
        "lhs": "s:g",
        "rhs": "s:g",
        "coef": "1",
        "symbols": [],
        "lhs_index": [],
        "rhs_index": [],
        "by": None,
    }
    stage = {
        "kind": "algebra",
        "goal": len(facts),
        "title": "t",
        "classes": list(map(list, classes)),
        "trees": [["s:g", []], *([r, t] for r, t in (trees or {}).items()), *map(list, reduced)],
        "goal_at": [],
        "cases": [{"reps": [], "premises": premises, "file": "0001"}],
    }
    plan = plan_of(
        [["r", mesh]],
        spec,
        [{"name": "c0", "box": {"r": [0, mesh]}, "program": local or program([], [], [])}],
        [],
        [],
        {"g": {"axes": ["r"], "ranks": [list(range(mesh))]}},
    )
    proof = read_proof(
        dump({"format": "trainverify-proof", "version": 1, "facts": [*facts, goal], "stages": [stage]})
    )
    algebra = Algebra(Model(read_plan(dump(plan))), proof.facts, proof.stages[0], "stage 0")  # type: ignore[arg-type]
    check_widths(algebra, "stage 0")
    return algebra


def forged(bundle: Bundle) -> Bundle:
    """The bundle with the obligation files that its records call for, numbered in order of first use."""
    files: dict[str, str] = {}

    def write(texts: Any, name: str, text: bytes, where: str) -> bool:
        texts.files.setdefault(name, text)
        return True

    data = bundle.members()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel._Texts, "compare", write)
        try:
            examined = kernel.examine(
                read_manifest(data),
                read_plan(data["plan.json"]),
                read_proof(data["proof.json"]),
                data,
            )
            files = {name: text.decode() for name, text in examined.files.items()}
        except (Malformed, Undecided):
            return bundle
        except Rejected as error:
            if error.number != 12:
                return bundle
    bundle.files = files or bundle.files
    return bundle


def at(path: str, value: Any) -> Callable[[Any], None]:
    """Assigns at a path of keys; a function gets the old value."""

    def change(top: Any) -> None:
        *keys, last = [int(k) if k.isdigit() else k for k in path.split(".")]
        for key in keys:
            top = top[key]
        top[last] = value(copy.deepcopy(top[last])) if callable(value) else value

    return change


def plus(extra: Any) -> Callable[[Any], Any]:
    return lambda old: old | extra if isinstance(old, dict) else [*old, extra]


def fact(lhs: Any, rhs: Any, symbols: list[Any], left: list[Any], right: list[Any], coef: str = "1") -> Any:
    return {
        "lhs": lhs,
        "rhs": rhs,
        "coef": coef,
        "symbols": symbols,
        "lhs_index": left,
        "rhs_index": right,
        "by": None,
    }


def definition(ref: Any, *coords: list[int]) -> dict[str, Any]:
    return {"k": "def", "e": [ref, list(coords)]}
