"""A program with calls in place of its repetitions, and the bodies of the functions that are called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.program import Attr, Op, Program
from certificates.plan.types import TensorType

from .flow import Flow, executed
from .regions import BACK, Instance, Region, Signature
from .stacks import new_names


def called(program: Program, regions: Sequence[Region], signatures: Sequence[Signature]) -> Program:
    """The program with calls in place of regions; function ``k`` has the signature of that number."""
    starts: dict[int, list[list[Op]]] = {}
    inside: set[str] = set()
    fresh = new_names(program)
    for k, (region, signature) in enumerate(zip(regions, signatures, strict=True)):
        for label, instance in region.instances.items():
            inside.update(instance.members)
            by_place = {place: value for value, place in instance.local.items()}
            sites = [signature.slots.index(s) for s in range(signature.width)]
            operands = tuple(instance.sites[s] for s in sites)
            results = [
                (next(fresh), instance.types[sites[0]])
                if place == BACK
                else (by_place[place], program.type_of(by_place[place]))
                for place in signature.places
            ]
            starts.setdefault(instance.first, []).append(
                [
                    _result(value, type_, operands, f"f{k}", label, output)
                    for output, (value, type_) in enumerate(results)
                ]
            )
    return Program(program.inputs, tuple(_ordered(regions[0].flow, starts, inside)), program.outputs)


def _ordered(
    flow: Flow, starts: Mapping[int, Sequence[Sequence[Op]]], inside: Collection[str]
) -> Iterator[Op]:
    """Calls and the core ops outside them, each where it stood or before what needs it.

    What a value is made of stands before the cheap ops that make it.
    """
    made = {op.out: call for calls in starts.values() for call in calls for op in call}

    def with_leaves(values: Iterable[str]) -> Iterator[str]:
        return (v for value in values for v in (*flow.leaves(value), value))

    def reads(op: Op) -> Iterable[str]:
        if op.out in made:
            first = made[op.out][0]
            return with_leaves(first.ins) if op.out == first.out else (first.out,)
        return op.ins if op.out in flow.cheap else with_leaves(op.ins)

    wanted: list[str] = []
    for i, op in enumerate(flow.core):
        wanted += (op.out for call in starts.get(i, ()) for op in call)
        wanted += () if op.out in inside else (op.out,)
    wanted += with_leaves(flow.program.outputs.values())
    for value in executed(((op.out, reads(op)) for op in flow.program.ops), wanted):
        call = made.get(value, ())
        if call:
            yield from call if value == call[0].out else ()
        elif value in flow.producer:
            yield flow.producer[value]


def _result(
    value: str, type_: TensorType, operands: tuple[str, ...], function: str, label: int, output: int
) -> Op:
    attrs: dict[str, Attr] = {"function": function, "instance": label, "output": output}
    return Op(value, CALL, operands, type_, attrs)


def body(instance: Instance, signature: Signature) -> Program:
    """What a call of this instance runs."""
    inputs: dict[str, TensorType] = {}
    for site, slot in enumerate(signature.slots):
        inputs.setdefault(f"a{slot}", instance.types[site])
    seqs = iter(signature.seqs)
    ops = []
    for place, (template, (_, operands)) in enumerate(zip(instance.templates, instance.ops, strict=True)):
        attrs = dict(template.attrs)
        if template.name in COLLECTIVES:
            attrs["seq"] = next(seqs)
        assert isinstance(operands, tuple)
        ins = tuple(f"%{n}" if kind == "local" else f"a{signature.slots[n]}" for kind, n in operands)
        ops.append(replace(template, out=f"%{place}", ins=ins, attrs=attrs))
    outputs = [f"%{place}" if place != BACK else f"a{signature.slots[0]}" for place in signature.places]
    return Program(inputs, tuple(ops), {f"r{i}": value for i, value in enumerate(outputs)})
