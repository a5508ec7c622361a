"""Mistakes in a definition, found before anything is traced, and in what its functions return.

Each is told at the line of the user's file where the field is given, or where the function begins.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .definition import Batch, Bucket, Definition
from .errors import CaptureError, DefinitionError, Frame, LayoutError, gathered
from .lowering import RankProgram

#: The functions of a definition: what they are given, and what they return.
FUNCTIONS: Mapping[str, tuple[tuple[str, ...], type, str]] = {
    "build": ((), nn.Module, "the single-device model"),
    "parallelize": (("model", "mesh"), nn.Module, "the model of this rank"),
    "optimizer": (("params",), torch.optim.Optimizer, "one torch.optim.Optimizer"),
    "step": (("model", "optimizer", "batch"), Mapping, '{"loss": loss}'),
    "parallel_step": (("model", "optimizer", "batch"), Mapping, '{"loss": loss}'),
}
#: First parts of the names of states and inputs: no output of a step may have them.
_TAKEN = ("params", "grads", "opt", "buffers", "batch", "hyper", "uninitialised")


def check(definition: Definition) -> None:
    """Raise all contradictions of a definition that can be seen without tracing it."""
    problems = [*_mesh(definition)]
    if not problems:  # what names axes can be judged
        problems += [*_batch(definition), *_axes(definition), *_buckets(definition)]
    problems += _functions(definition)
    if problems:
        raise gathered(problems)


def check_names(
    definition: Definition, specification: RankProgram, states: Iterable[str]
) -> list[CaptureError]:
    """Names in the definition that are nothing in the traced programs; ``states`` are those of the ranks."""
    found: list[CaptureError] = []
    results = [n for n in specification.outputs if n not in specification.inputs]
    for name in definition.mean_over:
        if name not in results:
            frame = field_line(definition, "mean_over")
            message = f"mean_over names {name!r}, which the step does not return"
            found.append(DefinitionError(message, frame=frame, instead=_choice(name, results)))
    every = {*specification.inputs, *states, *definition.buckets}
    known, kept = {_parameter(n) for n in every} - {""}, {n for n in every if n.startswith("opt.")}
    for name in definition.layouts or {}:
        if name not in known | kept:
            message = f"layouts names {name!r}, which is no parameter, buffer or state of the optimizer"
            frame = field_line(definition, "layouts")
            choice = _choice(name, kept if name.startswith("opt.") else known)
            found.append(LayoutError(message, frame=frame, instead=choice))
    return [*found, *_bucket_names(definition, specification, set(states))]


def _bucket_names(
    definition: Definition, specification: RankProgram, states: set[str]
) -> Iterator[CaptureError]:
    frame = field_line(definition, "buckets")
    for bucket, parts in definition.buckets.items():
        if states and bucket not in states:
            message = f"buckets names {bucket!r}, which no rank has"
            yield DefinitionError(message, frame=frame, instead=_choice(bucket, states))
        for name in parts.tensors:
            if name not in specification.inputs:
                message = f"holds {name!r}, which is no tensor of the single-device step"
                instead = _choice(name, specification.inputs)
                yield DefinitionError(message, tensor=bucket, frame=frame, instead=instead)


def _choice(name: str, names: Iterable[str]) -> str:
    """The names to choose from, the likely ones first."""
    listed = sorted(names)
    near = difflib.get_close_matches(name, listed, n=3)
    return _all([*near, *(n for n in listed if n not in near)])


def _parameter(name: str) -> str:
    """The name in the model of a state: ``opt.exp_avg.w`` is ``w``'s."""
    kind, _, rest = name.partition(".")
    if kind == "opt":
        return rest.partition(".")[2]
    return rest if kind in ("params", "grads", "buffers") else ""


def _all(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:12]) + (", …" if len(listed) > 12 else "") if listed else "none"


# --- fields ------------------------------------------------------------------------------------------------


def _mesh(definition: Definition) -> Iterator[CaptureError]:
    mesh: Any = definition.mesh
    good = isinstance(mesh, Mapping) and mesh
    if not good or not all(isinstance(a, str) and _natural(n) for a, n in mesh.items()):
        yield DefinitionError(
            f"mesh is {mesh!r}, not a mapping from names of axes to sizes",
            frame=field_line(definition, "mesh"),
            instead='mesh={"dp": 2, "tp": 2}',
        )


def _natural(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _functions(definition: Definition) -> Iterator[CaptureError]:
    for field, (arguments, _kind, result) in FUNCTIONS.items():
        function: Any = getattr(definition, field)
        if field == "parallel_step" and function is None:
            continue
        call = f"({', '.join(arguments)})"
        if not callable(function) or (isinstance(function, nn.Module) and field != "step"):
            name = type(function).__name__
            yield DefinitionError(
                f"{field} is a {name}, not a function",
                frame=field_line(definition, field),
                instead=f"{field}=f, where f{call} returns {result}",
            )
            continue
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            message = f"{field} is called with {call}: {error}"
            yield DefinitionError(
                message,
                frame=home(function) or field_line(definition, field),
                instead=f"a function of {call} that returns {result}",
            )
        except ValueError:  # a function that does not say what it takes
            continue


def _batch(definition: Definition) -> Iterator[CaptureError]:
    frame = field_line(definition, "batch")
    batch: Any = definition.batch
    if not isinstance(batch, Mapping):
        kind = type(batch).__name__
        yield DefinitionError(
            f"batch is a {kind}, not a mapping from names to Batch",
            frame=frame,
            instead='batch={"x": Batch((8, 4), shard={"dp": 0})}',
        )
        return
    for name, item in batch.items():
        for message, instead in _batch_problems(definition, item):
            yield DefinitionError(message, tensor=f"batch.{name}", frame=frame, instead=instead)


def _batch_problems(definition: Definition, item: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(item, Batch):
        yield f"is a {type(item).__name__}, not a Batch", "Batch(shape, dtype, shard={…})"
        return
    shape = item.shape
    if not isinstance(shape, tuple | list) or not all(map(_natural, shape)):
        yield f"its shape is {shape!r}, not a tuple of positive sizes", "Batch((8, 4), …)"
        return
    if not isinstance(item.dtype, torch.dtype):
        yield f"its dtype is {item.dtype!r}", "a dtype of torch, such as torch.int64"
    split = dict.fromkeys(range(len(shape)), 1)
    for axis, dim in item.shard.items():
        size = definition.mesh.get(axis)
        if size is None:
            yield f"shard names the axis {axis!r}, which the mesh does not have", _mesh_has(definition)
        elif not isinstance(dim, int) or dim not in split:
            yield f"shard names the dimension {dim!r} of {list(shape)}", f"0 to {len(shape) - 1}"
        else:
            split[dim] *= size
    for dim, parts in split.items():
        if shape[dim] % parts:
            near = (shape[dim] // parts + 1) * parts
            over = " and ".join(a for a, d in item.shard.items() if d == dim)
            message = f"dimension {dim} of {list(shape)} does not divide over axis {over} of {parts} ranks"
            yield message, f"a size that {parts} divides, such as {near}: every rank reads equal chunks"
    if item.bounds is not None:
        low, high = item.bounds
        if low >= high:
            yield f"no number lies in its bounds {item.bounds}", "bounds=(lowest, highest + 1)"


def _mesh_has(definition: Definition) -> str:
    return f"an axis of the mesh: {_all(definition.mesh)}"


def _axes(definition: Definition) -> Iterator[CaptureError]:
    """Axes in ``layouts`` and ``mean_over``."""
    frame, mesh = field_line(definition, "layouts"), set(definition.mesh)
    for name, axes in (definition.layouts or {}).items():
        if not isinstance(axes, Mapping):
            yield LayoutError(
                f"layouts gives it {axes!r}, not a mapping from axes to dimensions",
                tensor=name,
                frame=frame,
                instead=f'layouts={{"{name}": {{"axis": dimension}}}}, {{}} for replicated',
            )
        elif set(axes) - mesh:
            message = f"layout names the axes {sorted(set(axes) - mesh)}, which the mesh does not have"
            yield LayoutError(message, tensor=name, frame=frame, instead=_mesh_has(definition))
    frame = field_line(definition, "mean_over")
    given: Any = definition.mean_over
    if not isinstance(given, Mapping):
        message = f"mean_over is {given!r}, not a mapping from outputs to axes"
        yield DefinitionError(message, frame=frame, instead='mean_over={"loss": ("dp",)}')
        return
    for name, wanted in given.items():
        if isinstance(wanted, str):
            message = f"mean_over gives {name!r} the text {wanted!r}, not a tuple of axes"
            yield DefinitionError(message, frame=frame, instead=f'mean_over={{"{name}": ("{wanted}",)}}')
        elif set(wanted) - mesh:
            message = f"mean_over names the axes {sorted(set(wanted) - mesh)}, which the mesh does not have"
            yield DefinitionError(message, frame=frame, instead=_mesh_has(definition))


def _buckets(definition: Definition) -> Iterator[CaptureError]:
    frame = field_line(definition, "buckets")
    for name, bucket in definition.buckets.items():
        if not isinstance(bucket, Bucket) or isinstance(bucket.tensors, str):
            yield DefinitionError(
                "is not a Bucket with a tuple of names",
                tensor=name,
                frame=frame,
                instead='Bucket(("params.w", "params.b"), "dp")',
            )
        elif bucket.axis is not None and bucket.axis not in definition.mesh:
            message = f"lies along the axis {bucket.axis!r}, which the mesh does not have"
            yield DefinitionError(message, tensor=name, frame=frame, instead=_mesh_has(definition))


# --- what functions return ---------------------------------------------------------------------------------


def checked(definition: Definition) -> Definition:
    """The definition with functions that raise if they return what they must not."""
    given = {field: getattr(definition, field) for field in FUNCTIONS}
    changes: dict[str, Any] = {
        f: _watched(definition, f, function) for f, function in given.items() if function
    }
    again = replace(definition, **changes)
    object.__setattr__(again, "frame", definition.frame)
    return again


def _watched(definition: Definition, field: str, function: Callable[..., Any]) -> Callable[..., Any]:
    _arguments, kind, wanted = FUNCTIONS[field]

    @functools.wraps(function, updated=())
    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        frame = home(function) or field_line(definition, field)
        if not isinstance(result, kind):
            raise DefinitionError(
                f"{_title(field)} returns {_described(result)}, not {_expected(field)}",
                frame=frame,
                instead=f"return {wanted}" if kind is Mapping else f"return {wanted} at its end",
            )
        if isinstance(result, Mapping):
            problems = [*_results(field, result, frame)]
            if problems:
                raise gathered(problems)
        return result

    return call


def _title(field: str) -> str:
    return "a step" if field.endswith("step") else field


def _expected(field: str) -> str:
    if field.endswith("step"):
        return "a mapping from names to tensors"
    return "an Optimizer" if field == "optimizer" else "an nn.Module"


def _described(result: object) -> str:
    if result is None:
        return "None"
    kind = type(result).__name__
    return "a tensor" if isinstance(result, torch.Tensor) else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _results(field: str, results: Mapping[Any, Any], frame: Frame | None) -> Iterator[CaptureError]:
    for name, value in results.items():
        if not isinstance(name, str) or name.partition(".")[0] in _TAKEN:
            message = f"a step returns an output named {name!r}; names of states and inputs are taken"
            yield DefinitionError(message, frame=frame, instead="another name, such as loss")
        if not isinstance(value, torch.Tensor):
            yield DefinitionError(
                f"a step returns {_described(value)} as {name!r}, not a tensor",
                frame=frame,
                instead=f'"{name}": the tensor itself (without .item() or float()), or leave it out',
            )


# --- lines -------------------------------------------------------------------------------------------------


def home(function: object) -> Frame | None:
    """Where a function is defined: file, line, its name."""
    while isinstance(function, functools.partial):
        function = function.func
    if callable(function):
        function = inspect.unwrap(function)
    if inspect.ismethod(function):
        function = function.__func__
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, code.co_name)


def field_line(definition: Definition, field: str) -> Frame | None:
    """The line that gives ``field`` in the call that made the definition; else the line of that call."""
    frame = definition.frame
    if frame is None:
        return None
    calls = [c for c in _calls(frame[0]) if c.lineno <= frame[1] <= (c.end_lineno or c.lineno)]
    given = [k.value for c in calls for k in c.keywords if k.arg == field]
    near = [v.lineno for v in given if v.lineno >= frame[1]]
    return (frame[0], min(near), frame[2]) if near else frame


@lru_cache(maxsize=8)
def _calls(file: str) -> tuple[ast.Call, ...]:
    try:
        tree = ast.parse(Path(file).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))
