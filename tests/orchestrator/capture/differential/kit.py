"""Random calls of one op on random views, lowered and compared with eager PyTorch.

A generator of :mod:`.pointwise` and its neighbours draws a :class:`Case`: tensors and a function of them.
Either the lowered program computes what PyTorch computes, or the case says with which words it is refused.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from orchestrator.capture.errors import CaptureError
from orchestrator.capture.lowering import Lowering
from orchestrator.capture.lowering.decompositions import functional, taken_apart
from orchestrator.capture.lowering.foreach import single_ops
from orchestrator.capture.lowering.table import EFFECTS, find
from orchestrator.capture.recorder import Node, Recorder, recording, reference
from orchestrator.evaluating import interpreter

from ..conftest import to_program

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NUMBERS = (*FLOATS, torch.int64, torch.int32)
SMALL = (torch.int8, torch.uint8, torch.int16)
ALL = (*NUMBERS, *SMALL, torch.bool)
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 2e-4}
View = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Slot:
    """An operand: a view of a tensor that the lowered program gets as an input."""

    number: int
    view: View


@dataclass
class Draw:
    """Random choices of one case, and the tensors that it has made."""

    seed: str
    bases: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(40))

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def size(self) -> int:
        return self.one(1, 1, 2, 3, 3, 4, 5)

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.random.randint(low, high)))

    def like(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to ``shape``: leading dimensions left out, others of size 1."""
        kept = list(shape)[self.one(0, 0, 0, self.random.randint(0, len(shape))) :]
        return tuple(1 if self.chance(0.25) else n for n in kept)

    def numbers(self, shape: Sequence[int], dtype: torch.dtype, kind: Any) -> torch.Tensor:
        if isinstance(kind, tuple):
            return torch.randint(kind[0], kind[1], tuple(shape), generator=self.generator).to(dtype)
        if dtype == torch.bool:
            return torch.rand(tuple(shape), generator=self.generator) < 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            low = 0 if dtype == torch.uint8 or kind == "positive" else -3
            return torch.randint(low + (kind == "positive"), 4, tuple(shape), generator=self.generator).to(
                dtype
            )
        if dtype.is_complex:
            return torch.randn(tuple(shape), generator=self.generator, dtype=dtype)
        x = torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)
        x = x.abs() + 0.25 if kind == "positive" else x
        if kind is None and self.chance(0.3):
            x = x.round()  # ties, zeros
        return x.to(dtype)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float64,
        kind: Any = None,
        *,
        plain: bool = False,
        written: bool = False,
    ) -> Slot:
        """A tensor; ``kind`` is ``positive`` or a range of integers. What is ``written`` is not expanded."""
        views: list[View] = []
        base = list(shape)
        while not plain and self.chance(0.45):
            base, view = self._step(base, written)
            views.append(view)
        tensor = self.numbers(base, dtype, kind)
        if len(base) > 1 and not plain and self.chance(0.2):  # an input that is dense in another order
            tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        self.bases.append(tensor)

        def view(t: torch.Tensor) -> torch.Tensor:
            for step in reversed(views):
                t = step(t)
            return t

        return Slot(len(self.bases) - 1, view)

    def _step(self, shape: list[int], written: bool) -> tuple[list[int], View]:
        """The shape of a tensor of which a random view has ``shape``."""
        rank = len(shape)
        d = self.random.randrange(rank) if rank else 0
        kind = self.one("select", *(("permute", "slice", "slice", "expand", "flat") if rank else ()))
        if kind == "permute":
            perm = self.random.sample(range(rank), rank)
            return [shape[perm.index(i)] for i in range(rank)], lambda t: t.permute(perm)
        if kind == "slice":
            low, step, high = self.one(0, 0, 1, 2), self.one(1, 1, 2), self.one(0, 0, 1, 2)
            stop = low + step * (shape[d] - 1) + 1
            shape = [stop + high if i == d else n for i, n in enumerate(shape)]
            return shape, lambda t: t[(slice(None),) * d + (slice(low, stop, step),)]
        if kind == "expand" and not written:
            whole = list(shape)
            return [1 if i == d else n for i, n in enumerate(shape)], lambda t: t.expand(whole)
        if kind == "flat":
            whole = list(shape)
            flat = lambda t: t.reshape(whole) if not written else t.view(whole)  # noqa: E731
            return [int(np.prod(shape))], flat
        d = self.random.randint(0, rank)
        n = self.size()
        at = self.random.randrange(n)
        return [*shape[:d], n, *shape[d:]], lambda t: t.select(d, at)


@dataclass(frozen=True)
class Case:
    """A function of slots and other arguments; ``refused`` is a pattern of the reason."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    #: Computes what is expected where PyTorch has no such kernel for a CPU.
    expected: Callable[..., Any] | None = None


Generator = Callable[[Draw], Case]
#: Generators by the name of the lowering that they exercise.
TABLE: dict[str, list[Generator]] = {}


def cases(*keys: str) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """Register a generator for one lowering, or for several: it is then given the name without namespace."""

    def register(generator: Callable[..., Case]) -> Callable[..., Case]:
        for key in keys:
            name = key.rsplit("aten.", 1)[-1].split(".")[0]
            one = generator if len(keys) == 1 else (lambda d, name=name: generator(d, name))
            TABLE.setdefault(key, []).append(one)
        return generator

    return register


def inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    """The whole tensor after ``function`` wrote to a view of it, the first argument."""

    def run(written: tuple[torch.Tensor, View], *args: Any, **options: Any) -> Any:
        base, view = written
        base = base.clone()
        function(view(base), *args, **options)
        return base

    run.writes = True  # type: ignore[attr-defined]
    return run


def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with an ``out=`` tensor of the right shape and type."""

    def run(*args: Any, **options: Any) -> Any:
        out = torch.zeros_like(function(*args, **options))
        function(*args, **options, out=out)
        return out

    return run


def gradients(function: Callable[..., Any], grads: int = 1) -> Callable[..., Any]:
    """Gradients with respect to the floating-point arguments; the last ``grads`` are those of the results."""

    def run(*args: Any, **options: Any) -> Any:
        operands, weights = args[: len(args) - grads], args[len(args) - grads :]
        leaves = [
            a.detach().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a
            for a in operands
        ]
        out = function(*leaves, **options)
        wanted = [a for a in leaves if torch.is_tensor(a) and a.requires_grad]
        return torch.autograd.grad(out, wanted, weights if len(weights) > 1 else weights[0])

    return run


def promoted(d: Draw, *slots: Slot) -> torch.dtype:
    """The type in which PyTorch computes with these operands."""
    views = [s.view(d.bases[s.number]) for s in slots]
    return torch.result_type(*views)


def call(case: Case, function: Callable[..., Any], bases: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    args = list(case.args)
    writes = getattr(function, "writes", False)

    def at(item: Any) -> Any:
        return item.view(bases[item.number]) if isinstance(item, Slot) else item

    first = [(bases[args[0].number], args[0].view)] if writes else []
    rest = tree_map(at, args[1:] if writes else args)
    results = function(*first, *rest, **tree_map(at, case.options))
    return [r.detach() for r in tree_leaves(results) if torch.is_tensor(r)]


def keys_of(nodes: Sequence[Node]) -> set[str]:
    """Names under which the table was asked for these nodes."""
    names: set[str] = set()
    for node in nodes:
        parts = list(single_ops(node) or ())
        for op in [node.op, *(p.op for p in parts)]:
            base = op.rsplit(".", 1)[0]
            if op in EFFECTS:
                names.add(op)
            elif find(op):
                names |= {op, base, base.rstrip("_")}
            elif taken_apart(op):
                names.add(str(functional(op)).rsplit(".", 1)[0])
    return names


def check(key: str, generator: Generator, seed: str) -> str:
    """Draw a case and compare; ``agreed``, ``refused`` or ``invalid`` (PyTorch itself refuses it)."""
    draw = Draw(seed)
    case = generator(draw)
    bases = draw.bases
    try:
        want = call(case, case.expected or case.function, [b.clone() for b in bases])
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return "invalid"
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(b) for b in bases]
    lowering = Lowering(lambda _group: ())
    try:
        for i, fake in enumerate(fakes):
            lowering.add_input(f"x{i}", reference(fake))
        with mode, recording(Recorder()) as recorder:
            results = call(case, case.function, fakes)
        nodes = list(recorder.nodes)
        assert key in keys_of(nodes), f"{key} is not called but {sorted({n.op for n in nodes})}"
        lowering.run(nodes)
        ranked = lowering.finish({f"y{i}": reference(r) for i, r in enumerate(results)})
    except CaptureError as error:
        assert case.refused is not None, f"refused: {error}"
        assert re.search(case.refused, str(error)), f"{error} does not say {case.refused!r}"
        return "refused"
    assert case.refused is None, f"not refused with {case.refused!r}"
    program = to_program(ranked)
    given = {f"x{i}": _array(b) for i, b in enumerate(bases)}
    for name, type_ in program.inputs.items():  # of fresh memory nothing is known
        given.setdefault(name, np.full(type_.shape, 7.25))
    values = interpreter.evaluate(program, given)
    narrow = [t.dtype for t in (*bases, *want)]
    tolerance = max([TOLERANCE.get(t, 1e-9) for t in narrow])
    for i, tensor in enumerate(want):
        got, expected = values[program.outputs[f"y{i}"]], _array(tensor)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return "agreed"


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().resolve_conj()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
