"""Random single-process programs: written with real tensors, captured, compared with eager PyTorch."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from certificates.plan.program import Op, Program
from certificates.plan.type_rules import check_program
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.lowering import Lowering
from orchestrator.capture.recorder import Recorder, recording, reference
from orchestrator.errors import EvaluationError
from orchestrator.evaluating import interpreter

from .draw import Draw, Nothing
from .statements import FAMILIES, PRELUDE

#: Kind and shape of an input: floats, numbers of rows below the bound, booleans.
Input = tuple[str, tuple[int, ...]]
SHAPES = ((3, 4), (4, 4), (2, 3, 4), (4,), (3,), (2, 2, 3, 4), (1, 4), (4, 3), (2, 4, 4))
LARGEST, TOLERANCE = 1e4, 1e-8


@dataclass(frozen=True)
class Function:
    """A program of statements over inputs ``x0, x1, …``; all variables that live at its end are outputs."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[str, ...]

    def source(self) -> str:
        """A file that a person can run: it prints what the captured program and PyTorch make different."""
        lines = "\n".join(self.statements)
        return (
            "from tests.fuzz_capture.functions import Function, difference\n\n"
            f"INPUTS = {self.inputs!r}\n"
            f'STATEMENTS = """\n{lines}\n"""\n\n'
            f"print(difference(Function({self.seed}, INPUTS, tuple(STATEMENTS.split(chr(10))[1:-1]))))\n"
        )


@dataclass(frozen=True)
class Outcome:
    """``kind`` is agrees, differs, refused or invalid; ``outputs`` and ``refused`` count outputs."""

    kind: str
    detail: str = ""
    outputs: int = 0
    refused: int = 0
    rules: tuple[str, ...] = ()


def tensors(function: Function) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(function.seed)
    made = []
    for kind, shape in function.inputs:
        if kind == "f":
            made.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        elif kind == "i":
            made.append(torch.randint(0, 3, shape, generator=generator))
        else:
            made.append(torch.rand(shape, generator=generator) > 0.4)
    return made


def _space(given: Sequence[torch.Tensor]) -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec(PRELUDE, space)
    return space | {f"x{i}": t for i, t in enumerate(given)}


def _tame(space: dict[str, Any]) -> bool:
    for value in space.values():
        if isinstance(value, torch.Tensor):
            plain = value.detach()
            if value.numel() > 512 or value.dim() > 4 or 0 in value.shape:
                return False
            if value.dtype not in (torch.float64, torch.int64, torch.int32, torch.bool):
                return False
            if value.is_floating_point() and not bool((plain.abs() < LARGEST).all()):
                return False
    return True


def write(seed: int, length: int = 14) -> Function:
    """A program that PyTorch runs without an error and without large numbers."""
    rng = random.Random(seed)
    inputs: list[Input] = [("f", rng.choice(SHAPES)) for _ in range(rng.randint(2, 3))]
    inputs += [("i", rng.choice(((2,), (3,), (2, 2), (4,)))), ("b", inputs[0][1])]
    function = Function(seed, tuple(inputs), ())
    space = _space(tensors(function))
    families = rng.choices(
        list(FAMILIES), [weight for _, weight in FAMILIES.values()], k=length * 3
    )  # some draws find no tensor
    for family in families:
        if len(function.statements) >= length:
            break
        try:
            text = rng.choice(FAMILIES[family][0])(
                Draw(rng, {n: t for n, t in space.items() if n[0] in "xa"})
            )
        except (Nothing, ValueError, IndexError, RuntimeError):  # a view that PyTorch has made invalid
            continue
        if not text:
            continue
        name = f"a{len(function.statements)}"
        text = _named(text, name)
        longer = replace(function, statements=(*function.statements, text))
        try:  # from the start: a statement that fails may have changed something
            found = _run(longer)
        except Exception:
            continue
        if _tame(found):
            function, space = longer, found
    return function


def _named(text: str, name: str) -> str:
    if not text.startswith("v = "):
        return text
    return name + text[1:].replace("=v)", f"={name})").replace("; v[", f"; {name}[")


def _run(function: Function, given: Sequence[torch.Tensor] | None = None) -> dict[str, Any]:
    space = _space(tensors(function) if given is None else given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for statement in function.statements:
            exec(statement, space)
    return space


def _results(space: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {n: t.detach() for n, t in space.items() if n[0] in "xa" and isinstance(t, torch.Tensor)}


def check(function: Function) -> Outcome:
    """Capture the program and compare its numbers with PyTorch's."""
    try:
        want = _results(_run(function))
    except Exception as error:
        return Outcome("invalid", repr(error))
    given = tensors(function)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(t) for t in given]
    lowering = Lowering(lambda _group: ())
    values = {f"x{i}": t.numpy() for i, t in enumerate(given)}
    outputs, rules, refused, undecided = 0, [], 0, 0
    try:
        recorder = Recorder()
        for name, ref in recorder.given({f"x{i}": fake for i, fake in enumerate(fakes)}).items():
            lowering.add_input(name, ref)
        with mode, recording(recorder):
            space = _run(function, fakes)
        lowering.run(recorder.nodes)
    except CaptureError as error:
        return Outcome("refused", str(error), 0, len(want), (_rule(error),))
    except Exception as error:
        return Outcome("refused", repr(error), 0, len(want), (f"tracing {type(error).__name__}",))
    got = _results(space)
    if set(got) != set(want):
        return Outcome("differs", f"variables {sorted(set(got) ^ set(want))}")
    found: dict[str, np.ndarray] = {}
    try:
        found = _evaluated(lowering, got, values)
    except CaptureError:  # then those that are not refused, one by one
        for name, tensor in got.items():
            try:
                found |= _evaluated(lowering, {name: tensor}, values)
            except CaptureError as error:
                refused += 1
                rules.append(_rule(error))
    except EvaluationError as error:
        return Outcome("differs", f"the captured program cannot be evaluated: {error}")
    for name, made in found.items():
        true = want[name].resolve_conj().numpy()
        outputs += 1
        if made.shape != true.shape:
            return Outcome("differs", f"{name} has shape {list(made.shape)}, in PyTorch {list(true.shape)}")
        scale = max(1.0, float(np.abs(true.astype(np.float64)).max(initial=0)))
        apart = np.abs(made.astype(np.float64) - true.astype(np.float64)) / scale
        if not (apart <= TOLERANCE).all() and _unstable(function, name, want[name]):
            undecided += 1
        elif not (apart <= TOLERANCE).all():
            text = f"{name} = {true.tolist()} in PyTorch, {made.tolist()} as captured"
            return Outcome("differs", text, outputs, refused)
    rules += ["no difference: rounding decides a comparison"] * undecided
    kind = "agrees" if outputs > undecided else "refused"
    return Outcome(kind, "", outputs - undecided, refused + undecided, tuple(rules))


class _Nudged(TorchDispatchMode):
    """Every op that computes a new number errs in the thirteenth digit; data movement does not."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):
            return made
        given = [t.detach().double().flatten() for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)]
        for value in tree_leaves(made) if given else ():
            real = torch.is_tensor(value) and value.is_floating_point()
            if real and not bool(torch.isin(value.double(), torch.cat(given)).all()):
                noise = torch.randn(value.shape, generator=self._generator, dtype=torch.float64)
                value.mul_(1 + 1e-13 * noise)
        return made


def _unstable(function: Function, name: str, value: torch.Tensor) -> bool:
    """Does rounding decide the value, as in ``layer_norm(x).sum() > 0``? PyTorch then differs from itself."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        begun = [
            t + 1e-13 * torch.randn(t.shape, generator=generator, dtype=t.dtype)
            if t.is_floating_point()
            else t.clone()
            for t in tensors(function)
        ]
        with _Nudged(generator):
            other = _results(_run(function, begun))[name]
        if not torch.allclose(other.double(), value.double(), rtol=1e-9, atol=1e-9):
            return True
    return False


def _evaluated(
    lowering: Lowering, results: dict[str, torch.Tensor], values: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the captured program makes of the inputs; uninitialised memory is zero."""
    # no output has an input's name: a variable may get another shape, a state of a plan may not
    lowered = lowering.finish({f"end.{name}": reference(tensor) for name, tensor in results.items()})
    ops = tuple(Op(d.out, d.name, d.ins, d.type, dict(d.attrs)) for d in lowered.drafts)
    program = Program(lowered.inputs, ops, lowered.outputs)
    check_program(program)
    inputs = {n: values[n] if n in values else np.zeros(t.shape) for n, t in program.inputs.items()}
    made = interpreter.evaluate(program, inputs)
    return {name: made[program.outputs[f"end.{name}"]] for name in results}


def _rule(error: CaptureError) -> str:
    return f"{error.rule} {error.op or ''}".strip()


def difference(function: Function) -> str:
    outcome = check(function)
    return f"{outcome.kind}: {outcome.detail}"


def shrunk(function: Function) -> Function:
    """The same disagreement with as few statements as dropping them one by one leaves."""
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(function.statements))):
            statements = function.statements[:i] + function.statements[i + 1 :]
            shorter = replace(function, statements=statements)
            if check(shorter).kind == "differs":
                function, changed = shorter, True
    return function
