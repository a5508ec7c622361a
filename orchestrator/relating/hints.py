"""Where to look when an output has no proof: an op without model, or the first tensor without a relation.

Right plans hold tensors without relation too (a masked look-up before its sum), but what is made of them has
one again. So only chains of such tensors that reach the output count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from certificates.plan.calls import Site
from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.plan import Plan, RankClass, Relation
from certificates.plan.program import Op
from smtlib_emit.errors import NoDefinition

from .knowledge import Knowledge


@dataclass(frozen=True)
class Missing:
    """The op of a rank class at which a stage is missing; ``knowledge`` has what is known of its operands.

    ``unmodelled`` says what no premise can describe; ``inside`` are the functions that it is in and the ops
    that call them, from within outwards.
    """

    plan: Plan
    knowledge: Knowledge
    cls: str
    op: Op
    unmodelled: str = ""
    inside: tuple[tuple[str, Op], ...] = ()


@dataclass
class Hints:
    """Guesses for people: what stands in the way of outputs. ``inside`` gives a function's own at a call."""

    plan: Plan
    knowledge: Knowledge
    inside: Callable[[Site], Hints | None] = lambda _: None
    _related: dict[str, bool] = field(default_factory=dict)
    _modelled: dict[str, str] = field(default_factory=dict)

    def missing(self, output: Relation) -> Missing | None:
        """What stands in the way of an output, if an op does."""
        classes = [self.plan.by_class[name] for name in dict.fromkeys(p.cls for p in output.pieces)]
        found = (
            missing
            for search in (self._without_model, self._unrelated, self._itself)
            for cls in classes
            for missing in search(cls, cls.program.outputs[output.plan])
        )
        return next(found, None)

    def _without_model(self, cls: RankClass, value: str) -> Iterator[Missing]:
        """Collectives that a value depends on and that no premise can describe (``docs/certificate.md``)."""
        needed = {value}
        for op in reversed(cls.program.ops):
            if op.out in needed:
                needed.update(op.ins)
        for op in cls.program.ops:
            if op.out in needed and op.name in COLLECTIVES:
                ref = f"{cls.name}:{op.out}"
                if ref not in self._modelled:
                    self._modelled[ref] = self._unmodelled(cls, op)
                if self._modelled[ref]:
                    yield Missing(self.plan, self.knowledge, cls.name, op, self._modelled[ref])

    def _unmodelled(self, cls: RankClass, op: Op) -> str:
        try:
            self.knowledge.model.group(f"{cls.name}:{op.out}")
        except NoDefinition as error:
            return str(error)
        if op.name == "all_to_all" and op.integer("split_dim") == op.integer("concat_dim"):
            return f"{op.name} {op.out} of {cls.name}, which splits and joins one dimension"
        return ""

    def _unrelated(self, cls: RankClass, value: str) -> Iterator[Missing]:
        """The first op of the last chain of unrelated tensors that reaches a value, inside calls too."""
        reaching = {value}
        for op in reversed(cls.program.ops):
            if op.out in reaching:
                if self._is_related(f"{cls.name}:{op.out}"):
                    reaching.discard(op.out)
                else:
                    reaching.update(op.ins)
        for op in cls.program.ops:
            if op.out in reaching:
                yield from self._at_call(cls, op)
                yield Missing(self.plan, self.knowledge, cls.name, op)

    def _itself(self, cls: RankClass, value: str) -> Iterator[Missing]:
        """The op that makes an output whose relation is another one."""
        yield from (
            Missing(self.plan, self.knowledge, cls.name, op) for op in cls.program.ops if op.out == value
        )

    def _at_call(self, cls: RankClass, op: Op) -> Iterator[Missing]:
        if op.name != CALL:
            return
        function, instance = op.text("function"), op.integer("instance")
        inner = self.inside((function, instance))
        if inner is not None:
            body = inner.plan.by_class[str(self.plan.role(function, cls.name))]
            value = list(body.program.outputs.values())[op.integer("output")]
            for missing in inner._unrelated(body, value):
                yield replace(missing, inside=(*missing.inside, (function, op)))

    def _is_related(self, ref: str) -> bool:
        if ref not in self._related:
            known, model = self.knowledge, self.knowledge.model
            self._related[ref] = (
                model.tensors.type(ref).sort != "Real"
                or model.literal(ref) is not None
                or ref in known.partials
                or bool(known.facts_for(ref))
            )
        return self._related[ref]
