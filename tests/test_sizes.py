"""Nothing is large without a reason: functions, classes and modules above a size say why they are."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("certificates", "smtlib_emit", "orchestrator", "checker")
FUNCTION, CLASS, MODULE = 80, 300, 450
#: Why each of these is large. *To be cut* is no reason to stay: such a row is work that is left.
REASONS = {
    "certificates/authoring/build.py": "one method per op and collective: a table as methods",
    "certificates/authoring/build.py ProgramBuilder": "one method per op and collective: a table as methods",
    "certificates/plan/schema.py plan_schema": "one literal: the published schema",
    "certificates/plan/type_rules.py mismatch": "one case per op: a table",
    "certificates/plan/rows.py _Lowering": "one method per kind of op on packed rows: a table as methods",
    "smtlib_emit/layout.py LayoutText": "one method per premise of a layout file: a table as methods",
    "orchestrator/capture/assemble.py capture": "the phases of a capture in order, each a few lines",
    "orchestrator/capture/lowering/driver.py Lowering": "one method per thing that a node may do to a trace",
    "orchestrator/evaluating/boxes.py": "one method per op: a table as methods",
    "orchestrator/evaluating/boxes.py Evaluator": "one method per op: a table as methods",
    "orchestrator/refuting/proposals.py Proposals": "one method per kind of edit: a table as methods",
    "checker/language/ops.py check_types": "one case per op: a table",
    "checker/reading/plan.py read_plan": "one clause per obligation of the format, in its order",
    "checker/reading/rows.py Rows": "one method per kind of op on packed rows: a table as methods",
    "checker/refuting/witness.py": "only for REFUTED: one method per op, beside the reading of a witness",
    "checker/refuting/witness.py Machine": "one method per op: a table as methods",
    "checker/rules/algebra.py": "one method per premise of an algebra stage, beside their grammar",
    "checker/rules/algebra.py Algebra": "one method per premise of an algebra stage",
    "checker/rules/layout.py Layout": "one method per premise of a layout stage",
}


def large(text: str) -> list[str]:
    """What is too large in a module: its functions and classes by name, the module itself as ``""``."""
    found = [""] if len(text.splitlines()) > MODULE else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            most = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            found += [node.name] if (node.end_lineno or 0) - node.lineno + 1 > most else []
    return found


def test_what_is_large_says_why() -> None:
    """A row that is not needed any more goes."""
    found = {
        f"{path.relative_to(ROOT)} {name}".rstrip()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in large(path.read_text("utf-8"))
    }
    assert found == set(REASONS)


def test_sizes_are_counted_with_all_that_is_inside() -> None:
    method = "    def f(self):\n" + "        x = 1\n" * FUNCTION
    assert large(f"class C:\n{method}") == ["f"]
    assert large("class C:\n" + "    x = 1\n" * CLASS) == ["C"]
    assert large("x = 1\n" * (MODULE + 1)) == [""]
