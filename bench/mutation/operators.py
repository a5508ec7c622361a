"""What a mutant changes: one node of a syntax tree, by kind.

check       a statement that is a `raise` or a call, such as `need(...)`, is deleted
clause      one operand of `and` or `or` is dropped
condition   the condition of an `if`, a conditional expression or a comprehension is negated
bound       `<` and `<=`, `>` and `>=` are exchanged
operator    `and` and `or`, `==` and `!=`, `in` and `not in` are exchanged
number      an integer literal grows by one
write       an assignment to an attribute or an item, or one with an operator such as `+=`, is deleted
jump        `continue`, `break` or a `return` without a value is deleted
result      what is returned becomes the empty value of the annotated type: `False`, `()`, `{}`, `None`
element     an element of a list, a set or a dict, or of a tuple of constants, is dropped
truth       `True` and `False` are exchanged
identity    `is` and `is not` are exchanged, `not` is dropped
arithmetic  `+` and `-`, `*` and `//` are exchanged, `%` becomes `//`
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

KINDS = (
    "check", "clause", "condition", "bound", "operator", "number",
    "write", "jump", "result", "element", "truth", "identity", "arithmetic",
)  # fmt: skip
_BOUND: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_OPERATOR: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
_IDENTITY: dict[type[ast.AST], type[ast.AST]] = {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
_ARITHMETIC: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
_COMPARED = _BOUND | _OPERATOR | _IDENTITY
#: The empty value of an annotated type, by how the annotation begins; a union with `None` has `None`.
_EMPTY = {"bool": "False", "tuple": "()", "list": "[]", "dict": "{}", "Mapping": "{}", "Sequence": "()",
          "str": "''", "int": "0", "set": "set()", "frozenset": "frozenset()"}  # fmt: skip


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
            what = f"{ast.unparse(node)}, operator {k + 1}" if len(node.ops) > 1 else ast.unparse(node)
            for kind, table in (("bound", _BOUND), ("operator", _OPERATOR), ("identity", _IDENTITY)):
                if type(op) in table:
                    yield kind, k, what
    if isinstance(node, ast.BoolOp):
        yield "operator", 0, ast.unparse(node)
        yield from (
            ("clause", k, f"{ast.unparse(value)} of {ast.unparse(node)}")
            for k, value in enumerate(node.values)
        )
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number", 0, str(node.value)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "truth", 0, str(node.value)
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign)
        and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    ):
        yield "write", 0, ast.unparse(node)
    if isinstance(node, ast.Continue | ast.Break) or (isinstance(node, ast.Return) and node.value is None):
        yield "jump", 0, ast.unparse(node)
    if isinstance(node, ast.FunctionDef) and (empty := _empty(node)) is not None:
        for k, statement in enumerate(_returns(node)):
            if statement.value is not None and ast.unparse(statement.value) != empty:
                yield "result", k, ast.unparse(statement)
    if _elements(node):
        yield from (
            ("element", k, f"{what} of {ast.unparse(node)}") for k, what in enumerate(_elements(node))
        )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "identity", 0, ast.unparse(node)
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC and not _textual(node):
        yield "arithmetic", 0, ast.unparse(node)


def mutated(tree: ast.Module, kind: str, number: int, part: int) -> ast.Module:
    """A copy of the tree with one change of the node that comes `number`-th in `ast.walk`."""
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[number]
    match kind, node:
        case "number", ast.Constant(value=int() as value):
            node.value = value + 1
        case "truth", ast.Constant():
            node.value = not node.value
        case "condition", ast.If() | ast.IfExp():
            node.test = _negated(node.test)
        case "condition", ast.comprehension():
            node.ifs[part] = _negated(node.ifs[part])
        case _, ast.Compare():
            node.ops[part] = _COMPARED[type(node.ops[part])]()  # type: ignore[call-overload]
        case "operator", ast.BoolOp():
            node.op = _OPERATOR[type(node.op)]()  # type: ignore[assignment]
        case "clause", ast.BoolOp():
            rest = [v for k, v in enumerate(node.values) if k != part]
            node.values = rest * (2 if len(rest) == 1 else 1)  # `a and a` is `a`
        case "result", ast.FunctionDef():
            _returns(node)[part].value = ast.parse(_empty(node) or "", mode="eval").body
        case "element", ast.Dict():
            del node.keys[part], node.values[part]
        case "element", ast.List() | ast.Set() | ast.Tuple():
            del node.elts[part]
        case "arithmetic", ast.BinOp() | ast.AugAssign():
            node.op = _ARITHMETIC[type(node.op)]()  # type: ignore[assignment]
        case "identity", ast.UnaryOp():
            _replace(tree, node, node.operand)
        case _:
            _replace(tree, node, ast.Pass())
    return ast.fix_missing_locations(tree)


def _negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> None:
    new = ast.copy_location(new, old)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and old in value:
                value[value.index(old)] = new


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Its own, not those of functions inside."""
    found, waiting = [], list[ast.AST](function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Return):
            found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def _empty(function: ast.FunctionDef) -> str | None:
    """The empty value of what it returns; `None` if there is none."""
    said = ast.unparse(function.returns) if function.returns else "None"
    if said == "None":
        return None
    if said.endswith("| None"):
        return "None"
    return _EMPTY.get(said.split("[")[0])


def _elements(node: ast.AST) -> list[str]:
    """What can be dropped; of a tuple only if all are constants or attributes: its length is free."""
    if isinstance(node, ast.Dict) and len(node.values) > 1:
        return [
            f"{ast.unparse(k)}:" if k else f"**{ast.unparse(v)}"
            for k, v in zip(node.keys, node.values, strict=True)
        ]
    many = isinstance(node, ast.List | ast.Set) or (
        isinstance(node, ast.Tuple) and len(node.elts) > 1
        and all(isinstance(e, ast.Attribute | ast.Constant) for e in node.elts)
    )  # fmt: skip
    if many and not isinstance(getattr(node, "ctx", None), ast.Store):
        return [ast.unparse(e) for e in node.elts]  # type: ignore[attr-defined]
    return []


def _textual(node: ast.BinOp | ast.AugAssign) -> bool:
    """Texts, tuples or lists are put together: another operator has no value."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    plain = ast.Constant | ast.JoinedStr | ast.Tuple | ast.List | ast.ListComp
    return any(isinstance(s, plain) and not (isinstance(s, ast.Constant) and not isinstance(s.value, str))
               for s in sides)  # fmt: skip
