"""What is known of the tensors of one program while it is followed: values, names of ghosts, signs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.program import Op, Program
from certificates.plan.types import rational

from ..cells import Unfollowable
from .values import OMEGA, ONE, UNIT, Atom, Letter, Value, Values, letter, number
from .writing import Writer

#: Sums of so many tensors that no law is about are seen through, behind an exponential.
FEW = 4


@dataclass(frozen=True)
class Hop:
    """A tensor of a program, the ghost that it equals, and the letters of what it is made of.

    The tensor is opened by its op, if it is not ``given``; so are those that are ``opened``, whatever they
    equal.
    """

    name: str
    ghost: str
    letters: frozenset[str]
    given: bool = False
    opened: frozenset[str] = frozenset()


class Scope:
    """The tensors of a program.

    ``rule`` gives what an op makes of the values of its operands; ``positive`` and ``nonnegative`` say of a
    tensor of the program that it is so. What laws are about, and what is made of that, is *lively*.
    """

    def __init__(
        self,
        program: Program,
        rule: Callable[[Op], Value | None],
        positive: Callable[[str], bool],
        nonnegative: Callable[[str], bool],
    ) -> None:
        self.ops: Mapping[str, Op] = {op.out: op for op in program.ops}
        self.writer, self._rule = Writer(program), rule
        self.certain = positive
        self.values = Values(
            lambda n: n in self.signed or (n in self.ops and positive(n)),
            lambda n: n in self.signed or (n in self.ops and nonnegative(n)),
        )
        self.known: dict[str, Value] = {}
        self.lively: set[str] = set()
        #: Ghosts that are positive.
        self.signed: set[str] = set()
        #: Tensors of the program that are what their ops say, as no ghost is.
        self.seen: set[str] = set()
        self.hops: list[Hop] = []

    # --- values --------------------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """What a tensor is: followed, or a letter, or a sum of few letters."""
        if name not in self.known:
            self.known[name] = self._plain(name)
        return self.known[name]

    def letter(self, name: str) -> Value:
        """A tensor as a letter of its own."""
        shape = self.writer.types[name].shape
        return letter(self.writer.squeezed(name), tuple(d for d, n in enumerate(shape) if n > 1))

    def alone(self, value: Value) -> Letter | None:
        """The one letter that a value is."""
        ((m, c),) = value.above.items() if len(value.above) == 1 else ((UNIT, ONE),)
        ((x, k),) = m if len(m) == 1 else ((None, ONE),)
        return x if isinstance(x, Letter) and c == k == 1 and not value.below else None

    def number(self, name: str) -> Fraction | None:
        """The number that a constant is."""
        op = self.ops.get(name)
        if op is None or op.name != "constant" or op.type.sort != "Real":
            return None
        value = self.value(name).above
        return value.get(UNIT, Fraction(0)) if not value.keys() - {UNIT} else None

    def is_constant(self, name: str) -> bool:
        return name in self.ops and self.ops[name].name == "constant"

    def is_lively(self, value: Value) -> bool:
        return bool(value.below) or not all(map(self.plain, value.atoms()))

    def plain(self, atom: Atom) -> bool:
        """Whether a factor is no law's business."""
        return isinstance(atom, Letter) and atom.name not in self.lively

    # --- letters -------------------------------------------------------------------------------------------

    def like(self, name: str, other: str) -> str:
        """A letter that is what another one is, in other places."""
        if other in self.lively:
            self.lively.add(name)
        if self.values.positive(other):
            self.signed.add(name)
        return name

    def roots(self, values: Iterable[Value]) -> frozenset[str]:
        """The letters of values that a proof need not open."""
        return frozenset(self.writer.root(x.name) for v in values for x in v.letters() if not x.truth)

    def roots_of(self, names: Sequence[str]) -> frozenset[str]:
        return self.roots(self.value(n) for n in names if self.writer.types[n].sort == "Real")

    # --- tensors that are not lively -----------------------------------------------------------------------

    def _plain(self, name: str) -> Value:
        op = self.ops.get(name)
        if op is not None and op.name == "constant":
            text = op.attrs["value"]
            if text == "-inf":
                return Value({frozenset({(OMEGA, ONE)}): ONE}, {})
            if isinstance(text, str) and text not in ("inf", "true", "false"):
                return number(rational(text))
        elif op is not None and op.type.sort == "Real" and self._is_seen_through(op):
            try:
                found = self._rule(op)
            except Unfollowable:
                found = None
            if found is not None and len(found.above) <= FEW and not found.below:
                self.seen.add(name)
                return found
        return self.letter(name)

    def _is_seen_through(self, op: Op) -> bool:
        """Sums and multiples of tensors, and tensors in other places, of which no law is needed."""
        if any(v in self.lively for v in op.ins):
            return False
        if op.name in ("add", "subtract", "negate", "broadcast_in_dim", "transpose"):
            return True
        if op.name == "reshape":
            squeezed = [[n for n in self.writer.types[v].shape if n > 1] for v in (op.out, op.ins[0])]
            return squeezed[0] == squeezed[1]
        if op.name in ("multiply", "divide"):
            return any(self.number(v) is not None for v in op.ins)
        return op.name == "select" and any(map(self.is_constant, op.ins))
