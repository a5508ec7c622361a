"""Look-ups in a part of a table are related with all the masks around them, if a proof says so."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.relating.masked import DeepMatcher
from orchestrator.relating.tries import IN_A_FILE
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..plans import pair, unproved

VOCABULARY, TOKENS = 12, 5


def look_up(b: ProgramBuilder) -> None:
    table, tokens = b.input("table", f"f32[{VOCABULARY},3]"), b.input("tokens", f"i64[{TOKENS}]")
    b.output("there", b.gather(table, tokens))


def masked(bound: str = "LT", shift: int = 0, zeros: bool = True) -> Callable[[ProgramBuilder], None]:
    """Each rank looks up its rows; tokens of others are row 0, and then zero."""

    def write(b: ProgramBuilder) -> None:
        rows = VOCABULARY // 2
        table, tokens = b.input("table", f"f32[{rows},3]"), b.input("tokens", f"i64[{TOKENS}]")
        here = tokens - b.constant(b.axis_index("tp").scale(rows) + shift, f"i64[{TOKENS}]")
        mine = b.logical_and(b.compare(here, 0, "GE"), b.compare(here, rows, bound))
        row = b.select(mine, here, b.constant(0, f"i64[{TOKENS}]"))
        found = b.gather(table, row)
        nothing: Value = b.constant(0, f"f32[{TOKENS},3]")
        kept = b.select(b.broadcast(mine, (TOKENS, 3), (0,)), found, nothing) if zeros else found
        b.output("here", b.all_reduce(kept, "tp"))

    return write


def plan(write: Callable[[ProgramBuilder], None]) -> Plan:
    inputs = {"table": {"tp": Shard(0)}, "tokens": {"tp": Replicate()}}
    return pair({"tp": 2}, look_up, write, inputs, {}, {"tokens": (0, VOCABULARY)})


def related(made: Plan, *, honest: bool = True) -> tuple[Knowledge, list[int], list[int]]:
    """The sum over ranks, related with numbers as the proof (or with a prover that refuses all)."""
    knowledge = Knowledge(Model(made))
    knowledge.declare_inputs()
    numbers, tried = Numbers(made), []

    def proves(number: int) -> bool:
        tried.append(number)
        return honest and numbers.failure(knowledge.facts[number]) is None

    total = next(op for op in made.classes[0].program.ops if op.name == "all_reduce")
    whole = Reduced("add", ("tp",), (f"c0:{total.ins[0]}",))
    return knowledge, DeepMatcher(knowledge, proves).relate(whole), tried


def test_a_look_up_in_a_cut_table_is_the_look_up() -> None:
    made = plan(masked())
    knowledge, found, _ = related(made)
    (number,) = found
    fact = knowledge.facts[number]
    assert fact.rhs == "s:%0" and Numbers(made).failure(fact) is None
    opened = knowledge.recipes[number]
    assert {"s:%0", fact.lhs} <= opened.expand, "the stage sees masks and look-ups on both sides"  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [{"shift": 1}, {"zeros": False}])
@pytest.mark.parametrize("computed", [True, False])
def test_a_look_up_with_a_mistake_is_not_kept(
    change: dict[str, int], computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guess is the same. It fails at an element, so nobody is asked; without that: no proof, no fact."""
    if not computed:
        monkeypatch.setattr("orchestrator.relating.masked.fails", lambda _knowledge, _fact: False)
    knowledge, found, tried = related(plan(masked(**change)))  # type: ignore[arg-type]
    assert found == [] and bool(tried) == (not computed)
    assert all(n not in numbers for numbers in knowledge.by_lhs.values() for n in tried)


def test_without_a_proof_nothing_is_kept() -> None:
    knowledge, found, tried = related(plan(masked()), honest=False)
    assert found == [] and len(tried) >= 1
    assert not any(isinstance(r, Reduced) for r in knowledge.by_lhs)


def looked_up(b: ProgramBuilder, part: Value, label: Value) -> tuple[Value, Value]:
    """Which labels lie in a rank's part of the vocabulary, and what stands there."""
    columns = part.shape[1]
    here = label - b.constant(b.axis_index("tp").scale(columns), f"i64[{TOKENS}]")
    mine = b.logical_and(b.compare(here, 0, "GE"), b.compare(here, columns, "LT"))
    row = b.select(mine, here, b.constant(0, f"i64[{TOKENS}]"))
    found = b.gather(part, row.reshape(TOKENS, 1), axis=1, batch_dims=1).reshape(TOKENS)
    return mine, found


def loss(b: ProgramBuilder, *, ranks: bool, turned: bool = True) -> None:
    """The logit of a label below a number: looked up as a difference, or subtracted at the end by ranks."""
    columns = VOCABULARY // 2 if ranks else VOCABULARY
    logits, top = b.input("logits", f"f32[{TOKENS},{columns}]"), b.input("top", f"f32[{TOKENS}]")
    label = b.input("label", f"i64[{TOKENS}]")
    if not ranks:
        below = logits - b.broadcast(top, (TOKENS, columns), (0,))
        b.output("there", b.gather(below, label.reshape(TOKENS, 1), axis=1, batch_dims=1).reshape(TOKENS))
        return
    mine, found = looked_up(b, logits, label)
    chosen = b.all_reduce(b.select(mine, found, b.constant(0, f"f32[{TOKENS}]")), "tp")
    b.output("here", top - chosen if turned else top + chosen)


def last_related(turned: bool) -> tuple[Plan, list[Fact]]:
    made = pair(
        {"tp": 2},
        lambda b: loss(b, ranks=False),
        lambda b: loss(b, ranks=True, turned=turned),
        {"logits": {"tp": Shard(1)}, "top": {}, "label": {}},
        {},
        {"label": (0, VOCABULARY)},
    )
    knowledge, numbers = Knowledge(Model(made)), Numbers(made)
    knowledge.declare_inputs()
    proves = DeepMatcher(knowledge, lambda n: numbers.failure(knowledge.facts[n]) is None)
    found = proves.relate(f"c0:{made.classes[0].program.ops[-1].out}")
    return made, [knowledge.facts[n] for n in found]


def test_a_looked_up_difference_is_a_difference_of_look_ups_with_its_sign_turned() -> None:
    """As in Megatron's cross-entropy of logits that lie on ranks by columns."""
    made, (fact,) = last_related(turned=True)
    assert fact.coef == -1 and Numbers(made).failure(fact) is None


def test_a_sign_that_is_not_turned_is_not_kept() -> None:
    assert last_related(turned=False)[1] == []


def negative_log(b: ProgramBuilder, *, ranks: bool, wrong: bool = False) -> None:
    """The logarithm of a partition less a logit: by ranks both are less the largest logit."""
    columns = VOCABULARY // 2 if ranks else VOCABULARY
    logits, top, rest = (
        b.input(name, f"f32[{TOKENS},{columns}]" if name == "logits" else f"f32[{TOKENS}]")
        for name in ("logits", "top", "rest")
    )
    label = b.input("label", f"i64[{TOKENS}]")
    if not ranks:
        found = b.gather(logits, label.reshape(TOKENS, 1), axis=1, batch_dims=1).reshape(TOKENS)
        b.output("there", (rest + top) - found)
        return
    mine, found = looked_up(b, logits, label)
    found = found if wrong else found - top
    b.output("here", rest - b.all_reduce(b.select(mine, found, b.constant(0, f"f32[{TOKENS}]")), "tp"))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_sum_with_what_was_looked_up_is_found_beyond_the_look_up(wrong: bool) -> None:
    """``logsumexp(x) - x[label]`` against ``log(sum) - (x[label] - max)`` of a vocabulary on ranks."""
    made = pair(
        {"tp": 2},
        lambda b: negative_log(b, ranks=False),
        lambda b: negative_log(b, ranks=True, wrong=wrong),
        {"logits": {"tp": Shard(1)}, "top": {}, "rest": {}, "label": {}},
        {},
        {"label": (0, VOCABULARY)},
    )
    knowledge, numbers = Knowledge(Model(made)), Numbers(made)
    knowledge.declare_inputs()
    proves = DeepMatcher(knowledge, lambda n: numbers.failure(knowledge.facts[n]) is None)
    found = [knowledge.facts[n] for n in proves.relate(f"c0:{made.classes[0].program.ops[-1].out}")]
    assert [f.rhs for f in found] == ([] if wrong else [f"s:{made.specification.ops[-1].out}"])


def gradient(b: ProgramBuilder, start: int, rows: int, share: Fraction) -> None:
    """Of a look-up of one logit per token among ``rows`` from ``start``: the masked share, at its place."""
    shape = (TOKENS, rows)
    tokens = b.input("tokens", f"i64[{TOKENS}]")
    here = tokens - b.constant(start, f"i64[{TOKENS}]")
    mine = b.logical_and(b.compare(here, 0, "GE"), b.compare(here, rows, "LT"))
    row = b.select(mine, here, b.constant(0, f"i64[{TOKENS}]"))
    hot = b.compare(b.broadcast(row, shape, (0,)), b.iota(f"i64[{TOKENS},{rows}]", 1), "EQ")
    kept = b.constant(share, f"f32[{TOKENS}]") * b.convert(mine, "f32")
    b.output("grad", b.broadcast(kept, shape, (0,)) * b.convert(hot, "f32"))


@pytest.mark.parametrize(
    ("shares", "starts", "proved"),
    [
        ((Fraction(-9, 160),) * 2, (0, 6), True),
        ((Fraction(3),) * 2, (0, 6), True),
        ((Fraction(3), Fraction(3, 2)), (0, 6), False),
        ((Fraction(3),) * 2, (0, 5), False),
        ((Fraction(3),) * 2, (6, 0), False),
    ],
)
def test_the_gradient_of_a_masked_look_up_is_found_with_its_share_and_its_offset(
    shares: tuple[Fraction, Fraction], starts: tuple[int, int], proved: bool
) -> None:
    """The rank's offset is a number where every rank is a class of its own, and one factor stands outside."""
    mesh, rows = {"tp": 2}, VOCABULARY // 2
    specification, classes = ProgramBuilder(), {}
    gradient(specification, 0, VOCABULARY, shares[0])
    for rank, (share, start) in enumerate(zip(shares, starts, strict=True)):
        b = ProgramBuilder(mesh, box={"tp": (rank, rank + 1)})
        gradient(b, start, rows, share)
        classes[f"c{rank}"] = ({"tp": (rank, rank + 1)}, b.build())
    made = build_plan(
        name="gradient", mesh=mesh, specification=specification.build(), classes=classes,
        inputs={"tokens": {}}, outputs={"grad": {"tp": Shard(1)}}, ranges={"tokens": (0, VOCABULARY)},
    )  # fmt: skip
    assert (unproved(made) == []) is proved


def shifted(b: ProgramBuilder, start: object, rows: int, extra: int = 0) -> None:
    """Of all tokens a mask as numbers, among ``rows`` from ``start``; of the later ones a mask among all."""
    tokens = b.input("tokens", f"i64[{TOKENS}]")
    later = b.slice(tokens, [1], [TOKENS - 1])
    wide = b.broadcast(later, (TOKENS - 1, VOCABULARY), (0,))
    b.output("later", b.convert(b.compare(wide, b.iota(f"i64[{TOKENS - 1},{VOCABULARY}]", 1), "EQ"), "f32"))
    at = tokens
    if rows < VOCABULARY:
        here = tokens - b.constant(start, f"i64[{TOKENS}]")  # type: ignore[arg-type]
        mine = b.logical_and(b.compare(here, extra, "GE"), b.compare(here, rows, "LT"))
        at = b.select(mine, here, b.constant(0, f"i64[{TOKENS}]"))
    hot = b.compare(b.broadcast(at, (TOKENS, rows), (0,)), b.iota(f"i64[{TOKENS},{rows}]", 1), "EQ")
    found = b.convert(hot, "f32")
    if rows < VOCABULARY:
        found = found * b.broadcast(b.convert(mine, "f32"), (TOKENS, rows), (0,))
    b.output("all", found)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_mask_whose_later_rows_are_another_mask_is_found_row_by_row(extra: int) -> None:
    """The labels of a language model are its tokens, one later: of the model's two masks, one has most of the
    other's rows, and its own first row. With `extra` ranks leave out their first token."""
    rows = VOCABULARY // 2
    made = pair(
        {"tp": 2},
        lambda b: shifted(b, 0, VOCABULARY),
        lambda b: shifted(b, b.axis_index("tp").scale(rows), rows, extra),
        {"tokens": {}},
        {"all": {"tp": Shard(1)}, "later": {}},
        {"tokens": (0, VOCABULARY)},
    )
    assert [w.partition(":")[0] for w in unproved(made)] == ["c0"] * extra


def test_proposals_are_kept_all_or_none() -> None:
    """Half of a tensor is no relation of it."""
    made = plan(masked())
    knowledge, (number,), _ = related(made)
    fact = knowledge.facts[number]
    knowledge.by_lhs.pop(fact.lhs)
    answers = iter([True, False])
    assert not DeepMatcher(knowledge, lambda _: next(answers)).propose([fact, fact])
    assert fact.lhs not in knowledge.by_lhs
    assert DeepMatcher(knowledge, lambda _: True).propose([fact])
    assert len(knowledge.by_lhs[fact.lhs]) == 1


def test_what_is_guessed_in_vain_is_counted_until_nothing_is_guessed() -> None:
    """Tensors that are opened, and those of each file for a solver; a guess that is proved costs nothing."""
    knowledge, _, _ = related(plan(masked()))
    assert knowledge.tries.in_vain == 0
    made = plan(masked())
    knowledge, _, tried = related(made, honest=False)
    assert knowledge.tries.in_vain > IN_A_FILE * len(tried) > 0

    asked: list[int] = []
    matcher = DeepMatcher(knowledge, lambda n: bool(asked.append(n)))
    total = next(op for op in made.classes[0].program.ops if op.name == "all_reduce")
    whole = Reduced("add", ("tp",), (f"c0:{total.ins[0]}",))
    knowledge.tries.most = knowledge.tries.in_vain + 1
    assert matcher.relate(whole) == [] and not knowledge.tries.left and asked == [], "spent on the cones"
    spent = knowledge.tries.in_vain
    assert matcher.relate(whole) == [] and not matcher.propose([]) and knowledge.tries.in_vain == spent


@pytest.mark.parametrize("first", [0, 1])
def test_a_look_up_in_the_ranks_own_tables_is_told_apart_rank_by_rank(first: int) -> None:
    """Each rank has two of four tables; with the columns of other tables there is no proof."""

    def spec(b: ProgramBuilder) -> None:
        tables, tokens = b.input("tables", "f32[4,6,3]"), b.input("tokens", f"i64[{TOKENS},4]")
        for t in range(4):
            column = b.reshape(b.slice(tokens, [0, t], [TOKENS, 1]), (TOKENS,))
            found = b.gather(b.reshape(b.slice(tables, [t, 0, 0], [1, 6, 3]), (6, 3)), column)
            b.output(f"found{t}", b.tanh(found))

    def plan(b: ProgramBuilder) -> None:
        tables, tokens = b.input("tables", "f32[2,6,3]"), b.input("tokens", f"i64[{TOKENS},4]")
        start = b.axis_index("tp").scale(2) + first
        column = b.reshape(b.slice(tokens, [0, start], [TOKENS, 1]), (TOKENS,))
        found = b.gather(b.reshape(b.slice(tables, [0, 0, 0], [1, 6, 3]), (6, 3)), column)
        b.output("mine", b.reshape(b.tanh(found), (1, TOKENS, 3)))

    inputs = {"tables": {"tp": Shard(0)}, "tokens": {"tp": Replicate()}}
    made = pair({"tp": 2}, spec, plan, inputs, {}, {"tokens": (0, 6)})
    knowledge, numbers = Knowledge(Model(made)), Numbers(made)
    knowledge.declare_inputs()
    matcher = DeepMatcher(knowledge, lambda n: numbers.failure(knowledge.facts[n]) is None)
    gather = next(f"c0:{op.out}" for op in made.classes[0].program.ops if op.name == "gather")
    found = [knowledge.facts[n] for n in matcher.relate(gather)]
    there = [f"s:{op.out}" for op in made.specification.ops if op.name == "gather"]
    assert [f.rhs for f in found] == ([there[0], there[2]] if first == 0 else [])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_look_up_of_two_batches_behind_each_other_is_found_in_both(swapped: bool) -> None:
    """A rank's chosen and rejected answers: its second piece was taken for the first one's."""

    def write(b: ProgramBuilder, rows: int, other: bool) -> None:
        names = ("q", "p") if other else ("p", "q")
        inputs = {n: (b.input(n, f"f32[{rows},5]"), b.input(f"at_{n}", f"i64[{rows},1]")) for n in ("p", "q")}
        logits, at = (b.concatenate([inputs[n][i] for n in names], 0) for i in (0, 1))
        picked = b.gather(logits, at, axis=1, batch_dims=1)
        b.output("gain", b.slice(picked, [0, 0], [rows, 1]) - b.slice(picked, [rows, 0], [rows, 1]))

    cut = {n: {"dp": Shard(0)} for n in ("p", "q", "at_p", "at_q")}
    made = pair({"dp": 2}, lambda s: write(s, 4, False), lambda b: write(b, 2, swapped), cut,
                {"gain": {"dp": Shard(0)}}, {"at_p": (0, 5), "at_q": (0, 5)})  # fmt: skip
    assert (unproved(made) == []) is not swapped


@pytest.mark.parametrize("factor", [1, 3])
def test_a_multiple_of_a_table_is_looked_up(factor: int) -> None:
    """Gradients of a rank's mean are multiples of the specification's, and stay so where rows are picked."""

    def write(b: ProgramBuilder, rows: int, times: int) -> None:
        x, at = b.input("x", f"f32[{rows},5]"), b.input("at", f"i64[{rows},2]")
        scaled = x * b.constant(times, x.shape and f"f32[{rows},5]")
        b.output("y", b.gather(scaled, at, axis=1, batch_dims=1) / b.constant(factor, f"f32[{rows},2]"))

    cut = {n: {"dp": Shard(0)} for n in ("x", "at")}
    made = pair({"dp": 2}, lambda s: write(s, 4, factor), lambda b: write(b, 2, factor), cut,
                {"y": {"dp": Shard(0)}}, {"at": (0, 5)})  # fmt: skip
    assert unproved(made) == []


def below_largest(b: ProgramBuilder, *, ranks: bool) -> None:
    """The same, where both sides have the logits less the largest, which only ranks look labels up in."""
    columns = VOCABULARY // 2 if ranks else VOCABULARY
    logits, top = b.input("logits", f"f32[{TOKENS},{columns}]"), b.input("top", f"f32[{TOKENS}]")
    rest, label = b.input("rest", f"f32[{TOKENS}]"), b.input("label", f"i64[{TOKENS}]")
    below = logits - b.broadcast(top, (TOKENS, columns), (0,))
    b.output("below", below)
    if not ranks:
        found = b.gather(logits, label.reshape(TOKENS, 1), axis=1, batch_dims=1).reshape(TOKENS)
        b.output("there", (rest + top) - found)
        return
    mine, found = looked_up(b, below, label)
    b.output("here", rest - b.all_reduce(b.select(mine, found, b.constant(0, f"f32[{TOKENS}]")), "tp"))


def test_what_ranks_look_up_in_is_opened_below_their_sum() -> None:
    """It is the specification's, which looks labels up in what that is made of."""
    made = pair(
        {"tp": 2},
        lambda b: below_largest(b, ranks=False),
        lambda b: below_largest(b, ranks=True),
        {"logits": {"tp": Shard(1)}, "top": {}, "rest": {}, "label": {}},
        {},
        {"label": (0, VOCABULARY)},
    )
    knowledge, numbers = Knowledge(Model(made)), Numbers(made)
    knowledge.declare_inputs()
    lhs, rhs = (
        f"{owner}:{program.outputs['below']}"
        for owner, program in (("c0", made.classes[0].program), ("s", made.specification))
    )
    tp, row, column = map(Affine.symbol, ("tp", "i", "j"))
    symbols = ("tp", 0, 2), ("i", 0, TOKENS), ("j", 0, VOCABULARY // 2)
    there = row, tp.scale(VOCABULARY // 2) + column
    known = Fact(lhs, rhs, symbols, (tp, row, column), there)
    knowledge.add(known, LayoutRecipe())
    proves = DeepMatcher(knowledge, lambda n: numbers.failure(knowledge.facts[n]) is None)
    (found,) = proves.relate(f"c0:{made.classes[0].program.outputs['here']}")
    assert knowledge.facts[found].rhs == f"s:{made.specification.outputs['there']}"
