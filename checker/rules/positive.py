"""Tensors that are evidently positive, and tensors that no infinite literal reaches (obligation 7)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ..language.ops import Op
from ..language.proof import Reduced, Ref, Tensor
from .infinite import MOVES
from .model import Model
from .roots import CLOSED, called, nonnegative

#: Ops whose result may be infinite where an operand is (obligation 2). Of the others an exponential takes an
#: infinity, and a maximum over rows: that none is masked as a whole is assumed, or seen in constants.
CARRIES = MOVES | {"negate", "add", "subtract"}
MAX_DEPTH = 100


class Signs:
    """What the way in which tensors are computed shows of them, in a program and the functions it calls."""

    def __init__(self, model: Model) -> None:
        self.model, self.caller = model, model.caller or model.plan
        self.known: dict[tuple[str, str, Tensor], bool] = {}
        self.depth = 0

    def finite(self, ref: Ref) -> bool:
        """Is no element infinite? What a function takes or gives is not (obligation 2)."""
        return all(self._of("finite", self._finite, self.model.function, t) for t in members(ref))

    def positive(self, ref: Ref) -> bool:
        """Is every element a positive real number? A sum over ranks has a summand."""
        return all(self._of("positive", self._positive, self.model.function, t) for t in members(ref))

    def truth(self, ref: Ref) -> bool:
        """Is every element 0 or 1?"""
        return self.model.type(ref).sort == "Bool"

    def nonnegative(self, ref: Ref) -> bool:
        return nonnegative(self.model, ref)

    def _of(self, word: str, rule: Callable[[str, Tensor], bool], function: str, tensor: Tensor) -> bool:
        key = word, function, tensor
        if key not in self.known:
            self.known[key] = False  # what rests on itself, or on too long a chain, is not shown
            self.depth += 1
            if self.depth <= MAX_DEPTH:
                self.known[key] = rule(function, tensor)
            self.depth -= 1
        return self.known[key]

    def _finite(self, function: str, tensor: Tensor) -> bool:
        here = self._model(function)
        value = here.constant(tensor)
        op = here.producer(tensor) if value is None else None
        if op is None or op.name not in CARRIES:
            return not isinstance(value, str)
        return all(self._of("finite", self._finite, function, t) for t in read(here, tensor, op))

    def _positive(self, function: str, tensor: Tensor) -> bool:
        here = self._model(function)
        value = here.constant(tensor)
        if value is not None:
            return isinstance(value, Fraction) and value > 0
        op = here.producer(tensor)

        def all_(tensors: set[tuple[str, Tensor]]) -> bool:
            return all(self._of("positive", self._positive, f, t) for f, t in tensors)

        if op is None:  # an input of a function is its operand at every call
            given = self.caller.operands(function, tensor.space, tensor.value) if function else ()
            return bool(given) and all_({("", Tensor(c, o)) for c, o in given})
        if op.name == "call":
            return all_({called(self.caller, tensor, op)})
        behind = read(here, tensor, op)
        if op.name == "exponential":
            return all(self._of("finite", self._finite, function, t) for t in behind)
        if op.name == "logistic":
            return True
        if op.name == "reduce" and self._shifted(here, tensor, op):
            return True
        if op.name in ("add", "maximum"):
            one = any(all_({(function, t)}) for t in behind)
            return one and all(nonnegative(here, t) for t in behind)
        return op.name in CLOSED | {"divide", "sqrt"} and all_({(function, t) for t in behind})

    def _shifted(self, here: Model, tensor: Tensor, op: Op) -> bool:
        """A sum of `exp(x - y)` over rows, of which obligation 2 says that none is masked as a whole: the
        program takes the maximum of `x` over them. `y` is finite."""
        power = here.producer(Tensor(tensor.space, op.operands[0]))
        if op.attrs["kind"] != "add" or power is None or power.name != "exponential":
            return False
        inner = here.producer(Tensor(tensor.space, power.operands[0]))
        x, *rest = inner.operands if inner is not None and inner.name == "subtract" else power.operands
        return all(
            self._of("finite", self._finite, here.function, Tensor(tensor.space, y)) for y in rest
        ) and any(
            o.name == "reduce" and (o.operands, dict(o.attrs)) == ((x,), {**op.attrs, "kind": "max"})
            for o in here.plan.program(tensor.space).ops
        )

    def _model(self, function: str) -> Model:
        if not function:
            return Model(self.caller)
        return Model(self.caller.functions[function], function, self.caller)


def members(ref: Ref) -> tuple[Tensor, ...]:
    return ref.of if isinstance(ref, Reduced) else (ref,)


def read(model: Model, tensor: Tensor, op: Op) -> list[Tensor]:
    """The operands, of all ranks that meet in a collective or a message."""
    meets = model.plan.meets(op) if "seq" in op.attrs else {tensor.space: op}
    return [Tensor(space, o) for space, met in meets.items() for o in met.operands]
