"""What capture does with each op of PyTorch's core set: ``python bench/aten.py [--write]``.

The ops are those that carry ``torch.Tag.core``, the set that ``torch.export`` decomposes into. ``--write``
replaces the table in docs/coverage.md; tests/test_aten.py keeps it true.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from orchestrator.capture.lowering import Lowering
from orchestrator.capture.lowering.decompositions import taken_apart
from orchestrator.capture.lowering.table import EFFECTS, find
from orchestrator.capture.missing import OPS
from orchestrator.capture.signatures import signature

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
BEGIN, END = "<!-- aten -->", "<!-- end aten -->"

#: Ops without a place in a plan, with the reason.
OUT_OF_SCOPE = {
    "_local_scalar_dense": "the value of a tensor, which a trace has not",
    "resize_": "changes a tensor's memory in place; PyTorch discourages it",
    "sym_is_contiguous": "a question about shapes, answered while tracing",
    "sym_numel": "a question about shapes, answered while tracing",
    "sym_size": "a question about shapes, answered while tracing",
    "sym_storage_offset": "a question about shapes, answered while tracing",
    "sym_stride": "a question about shapes, answered while tracing",
}
LOWERED, REFUSED, OUTSIDE = "lowered", "refused with advice", "out of scope"


def core_ops() -> list[Any]:
    """Every overload of ``aten`` that carries the tag of the core set, by name."""
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    found = []
    for name in names:
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        if torch.Tag.core in op.tags:
            found.append(op)
    return found


def status(op: Any) -> tuple[str, str]:
    """One of the three words, and how or why."""
    assert Lowering is not None  # its import fills the table
    name, base = str(op), str(op).split(".")[1]
    if signature(op).view:
        return LOWERED, "as a view"
    if base in OUT_OF_SCOPE:
        return OUTSIDE, OUT_OF_SCOPE[base]
    if name in EFFECTS or find(name) is not None:
        return LOWERED, "by its formula"
    if taken_apart(name):
        return LOWERED, "as PyTorch takes it apart"
    for row in OPS:
        if any(base == known or base.startswith(f"{known}_") for known in row.ops):
            return REFUSED, row.instead
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return LOWERED, "taken apart before it is recorded"
    return "unknown", ""


def table() -> str:
    """Counts, and one row for each way of an op."""
    rows: dict[tuple[str, str], list[str]] = {}
    for op in core_ops():
        rows.setdefault(status(op), []).append(str(op).removeprefix("aten.").removesuffix(".default"))
    counts = {
        word: sum(len(v) for (w, _), v in rows.items() if w == word) for word in (LOWERED, REFUSED, OUTSIDE)
    }
    head = ", ".join(f"{n} {word}" for word, n in counts.items())
    version = torch.__version__.split("+")[0]
    lines = [
        f"Of {sum(counts.values())} overloads of the core set of PyTorch {version}: {head}.",
        "",
    ]
    lines += ["| | how, or what to write instead | ops |", "| --- | --- | --- |"]
    for (word, how), ops in sorted(
        rows.items(), key=lambda r: ((LOWERED, REFUSED, OUTSIDE).index(r[0][0]), r[0][1])
    ):
        lines.append(f"| {word} | {how} | {', '.join(f'`{o}`' for o in ops)} |")
    return "\n".join(lines)


def replaced(page: str, text: str) -> str:
    """The page with its table exchanged."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the table in docs/coverage.md")
    text = table()
    if parser.parse_args().write:
        PAGE.write_text(replaced(PAGE.read_text("utf-8"), text), "utf-8")
    print(text)


if __name__ == "__main__":
    main()
