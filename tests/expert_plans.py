"""Layers of experts by hand, in indicator form: experts see all tokens, times a mask of who chose them.

The specification is the plain layer on all tokens: a router with softmax or sigmoid scores, a few experts per
token with weights that add up to ``SCALE``, gated experts, a shared expert, the gradients of all of it, SGD,
counts per expert and the update of the bias that balances them. In the plan, replicas ``dp`` and expert ranks
``ep`` have tokens of their own, a rank of ``ep`` has its experts, and ``tp`` cuts their hidden units. Which
experts a token chooses is an integer input of both sides, so that a proof is about every choice, or what a
router makes of its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.authoring.choosing import top_k
from certificates.authoring.packing import Rows
from certificates.plan.placements import Placement, Shard
from certificates.plan.plan import Plan

WIDTH, HIDDEN, SHARED = 6, 8, 4
SCALE = Fraction(5, 2)
EXPERT_WEIGHTS = ("params.gate", "params.up", "params.down")

#: What can be wrong, and an output that shows it: REFUTED, with a witness.
REFUTED = {
    "experts of the first rank on every rank": "y",
    "experts of the neighbouring rank": "y",
    "weights of the own tokens only": "y",
    "own tokens instead of the dispatched": "y",
    "experts' results not combined": "y",
    "hidden units not combined": "y",
    "shared expert added before the reduction": "y",
    "shared expert left out on the ranks of tp": "y",
    "weights not normalised": "y",
    "weights normalised over all experts": "y",
    "weights applied twice": "y",
    "router gradient not summed over ep": "params.router",
    "router gradient not summed over dp": "params.router",
    "router gradient of the own experts only": "params.router",
    "router gradient not summed over tp": "params.router",
    "gradient of the normalisation left out": "params.router",
    "expert gradient not summed over dp": "params.up",
    "expert gradient summed over ep": "params.up",
    "expert gradient averaged over dp": "params.up",
    "expert gradient without weights": "params.up",
    "input gradient of the own experts only": "dx",
    "input gradient without the router's": "dx",
    "counts of the own tokens only": "counts",
    "bias updated from local counts": "bias",
    "bias updated with the other sign": "bias",
}
#: The same of a router that chooses by itself.
ROUTED = {
    "experts chosen without the bias": "y",
    "groups by their best expert": "y",
    "groups not limited": "y",
}
#: Those above that are mistakes in what :class:`Packed` does in another way.
IN_EXPERTS = (
    "experts of the first rank on every rank",
    "experts of the neighbouring rank",
    "weights of the own tokens only",
    "own tokens instead of the dispatched",
    "experts' results not combined",
    "weights applied twice",
    "shared expert added before the reduction",
    "router gradient of the own experts only",
    "expert gradient without weights",
    "input gradient of the own experts only",
)
#: What can be wrong where rows are dispatched: REFUTED.
PACKED_REFUTED = {
    "weights of another choice": "y",
    "results of another choice": "y",
    "gate and up exchanged": "y",
    "gradients of the output without weights": "params.down",
    "tokens sent instead of their gradients": "params.down",
    "gradient of one choice only": "dx",
    "slots by choice instead of by token": "y",
}
#: What rests on an order of rows, and what the format says to it.
MISORDERED = {
    "no un-permutation": "does not act on each row by itself",
    "scores in slot order": "does not act on each row by itself",
    "a second sort with another tie order": "is in the order %.*, not in",
    "gradients sorted again": "joins rows of two orders",
    "not regrouped at the experts": "needs an order made by sort_rows or regroup_rows",
    "not put back before the way back": "is in the order %.*, not in",
    "regrouped by a second order": "is in the order %.*, not in",
    "summed over tp while packed": "does not act on each row by itself",
    "rows added up without their order": "does not act on each row by itself",
}
#: Other ways to compute the same: PROVED.
RIGHT = (
    "slots sent to their experts",
    "mask by select",
    "results reduced over tp first",
    "weights put on the input of down",
    "shared expert reduced by itself",
    "gate and up in one product",
    "activations computed again",
    "sigmoid scores",
)


@dataclass(frozen=True)
class Sizes:
    """``tokens`` of one rank; ``experts`` of all ranks, of which a token has ``chosen``.

    With ``groups`` the router chooses by itself: scores plus bias decide which experts, first the better half
    of the groups (by their two best), then experts in these.
    """

    dp: int = 2
    ep: int = 2
    tp: int = 2
    tokens: int = 3
    experts: int = 4
    chosen: int = 2
    groups: int = 0

    @property
    def mesh(self) -> dict[str, int]:
        return {"dp": self.dp, "ep": self.ep, "tp": self.tp}

    @property
    def batch(self) -> int:
        return self.tokens * self.dp * self.ep


def silu(b: ProgramBuilder, x: Value) -> Value:
    return x * b.logistic(x)


def silu_gradient(b: ProgramBuilder, x: Value) -> Value:
    s = b.logistic(x)
    return s + x * s * (1 - s)


class Layer:
    """One program: the specification, or with ``sizes.mesh`` what all ranks run. ``way`` is one of
    :data:`REFUTED` or :data:`RIGHT`, or empty."""

    def __init__(self, sizes: Sizes, ranks: bool, way: str = "") -> None:
        self.sizes, self.ranks, self.way = sizes, ranks, way
        self.b = ProgramBuilder(sizes.mesh if ranks else None)
        e, units, hidden = sizes.experts, HIDDEN, SHARED
        self.n, self.all = (sizes.tokens, sizes.tokens * sizes.ep) if ranks else (sizes.batch, sizes.batch)
        if ranks:
            e, units, hidden = e // sizes.ep, HIDDEN // sizes.tp, SHARED // sizes.tp
        self.own = e
        types = {
            "x": f"f32[{self.n},{WIDTH}]",
            "dy": f"f32[{self.n},{WIDTH}]",
            "bias": f"f32[{sizes.experts}]",
            "lr": "f32[]",
            "params.router": f"f32[{WIDTH},{sizes.experts}]",
            "params.gate": f"f32[{e},{WIDTH},{units}]",
            "params.up": f"f32[{e},{WIDTH},{units}]",
            "params.down": f"f32[{e},{units},{WIDTH}]",
            "params.shared_in": f"f32[{WIDTH},{hidden}]",
            "params.shared_out": f"f32[{hidden},{WIDTH}]",
        }
        if not sizes.groups:
            types["choice"] = f"i64[{self.n},{sizes.chosen}]"
        self.v = {name: self.b.input(name, type_) for name, type_ in types.items()}

    # --- what ranks do and the specification does not ---

    def _is(self, way: str) -> bool:
        return self.ranks and self.way == way

    def total(self, x: Value, *axes: str) -> Value:
        for axis in axes if self.ranks else ():
            x = self.b.all_reduce(x, axis)
        return x

    def dispatched(self, x: Value) -> Value:
        return self.b.all_gather(x, "ep", 0) if self.ranks else x

    def combined(self, x: Value) -> Value:
        return self.b.reduce_scatter(x, "ep", 0) if self.ranks else x

    # --- the layer ---

    def mask(self, choice: Value, experts: int, own: bool = False) -> Value:
        """1 where the choice is an expert: one of this rank's, or one of all."""
        b, shape = self.b, (*choice.shape, experts)
        number = b.iota(f"i64[{experts}]", 0)
        if own:
            first = b.axis_index("ep").scale(experts)
            if self._is("experts of the neighbouring rank"):
                first = (b.axis_index("ep").scale(-1) + (self.sizes.ep - 1)).scale(experts)
            if not self._is("experts of the first rank on every rank"):
                number = number + b.constant(first, number.type)
        here = b.compare(b.broadcast(choice, shape, (0, 1)), b.broadcast(number, shape, (2,)), "EQ")
        if self._is("mask by select"):
            one = b.constant(1, f"f32[{','.join(map(str, shape))}]")
            return b.select(here, one, one * 0)
        return b.convert(here, "f32")

    def scores(self) -> tuple[Value, Callable[[Value], Value]]:
        """Per token and expert, and from its gradient to that of the logits."""
        b, logits = self.b, self.v["x"] @ self.v["params.router"]
        if self.way == "sigmoid scores":
            s = b.logistic(logits)
            return s, lambda g: g * s * (1 - s)
        e = b.exponential(logits - b.reduce(logits, (1,), "max").like(logits, 0))
        p = e / e.sum(1).like(e, 0)
        return p, lambda g: p * (g - (g * p).sum(1).like(p, 0))

    def program(self) -> ProgramBuilder:
        self._router()
        self._experts()
        self._shared()
        y, dx = self._results()
        self.b.output("y", y)
        self.b.output("dx", dx)
        self._updates()
        return self.b

    def _router(self) -> None:
        b = self.b
        self.p, self.to_logits = self.scores()
        self.choice = self._choice() if self.sizes.groups else self.v["choice"]
        self.hot = self.mask(self.choice, self.sizes.experts)
        self.chosen = b.dot(self.hot, self.p, ((2,), (1,)), ((0,), (0,)))
        self.sum = (self.p if self._is("weights normalised over all experts") else self.chosen).sum(1)
        weight = self.chosen / self.sum.like(self.chosen, 0) * SCALE
        self.weight = self.chosen * SCALE if self._is("weights not normalised") else weight

    def _choice(self) -> Value:
        """The best experts of the best groups, by scores plus bias."""
        b, groups, size = self.b, self.sizes.groups, self.sizes.experts // self.sizes.groups
        rank = (
            self.p if self._is("experts chosen without the bias") else self.p + self.v["bias"].like(self.p, 1)
        )
        by_group = rank.reshape(self.n, groups, size)
        best = top_k(b, by_group, 2).values
        best = best[:, :, :1] if self._is("groups by their best expert") else best
        of_groups = top_k(b, best.sum(2), groups // 2).mask
        allowed = b.broadcast(b.reduce(of_groups, (1,), "or"), by_group.shape, (0, 1)).reshape(*rank.shape)
        return top_k(b, rank, self.sizes.chosen, None if self._is("groups not limited") else allowed).ids

    def _experts(self) -> None:
        """Outputs of the own experts for the tokens of all ranks of ``ep``, weighted and added up."""
        b, v = self.b, self.v
        gathered = self.dispatched
        copies = lambda x: b.concatenate([x] * self.sizes.ep, 0)  # noqa: E731
        self.x = (copies if self._is("own tokens instead of the dispatched") else gathered)(v["x"])
        self.dy = gathered(v["dy"])
        self.here = self.mask(gathered(self.choice), self.own, own=True) if self.ranks else self.hot
        weight = (copies if self._is("weights of the own tokens only") else gathered)(self.weight)
        self.c = (self.here * b.broadcast(weight, self.here.shape, (0, 1))).sum(1)
        into = ((1,), (1,))
        if self._is("gate and up in one product"):
            both = b.dot(self.x, b.concatenate([v["params.gate"], v["params.up"]], 2), into)
            units = both.shape[2] // 2
            self.g, self.u = both[:, :, :units], both[:, :, units:]
        else:
            self.g, self.u = b.dot(self.x, v["params.gate"], into), b.dot(self.x, v["params.up"], into)
        self.a = silu(b, self.g) * self.u
        out = ((2,), (1,)), ((1,), (0,))
        self.o = b.dot(
            self.a, v["params.down"], *out
        )  # [experts, tokens, width], a part of it on each rank of tp
        by_token = ((1,), (0,)), ((0,), (1,))
        if self._is("weights put on the input of down"):
            weighted = self.a * b.broadcast(self.c, self.a.shape, (0, 1))
            self.y = b.dot(weighted, v["params.down"], ((1, 2), (0, 1)))
        else:
            c = self.c * self.c if self._is("weights applied twice") else self.c
            self.y = b.dot(c, self.o, *by_token)
        # backward
        do = b.broadcast(self.dy, (self.all, self.own, WIDTH), (0, 2))
        if not self._is("expert gradient without weights"):
            do = do * b.broadcast(self.c, do.shape, (0, 1))
        if self._is("activations computed again"):
            g, u = b.dot(self.x, v["params.gate"], into), b.dot(self.x, v["params.up"], into)
            a = silu(b, g) * u
        else:
            g, u, a = self.g, self.u, self.a
        da = b.dot(do, v["params.down"], ((2,), (2,)), ((1,), (0,))).transpose(1, 0, 2)
        dg, du = da * u * silu_gradient(b, g), da * silu(b, g)
        rows = ((0,), (0,))
        self.grad = {
            "params.gate": b.dot(self.x, dg, rows).transpose(1, 0, 2),
            "params.up": b.dot(self.x, du, rows).transpose(1, 0, 2),
            "params.down": b.dot(a, do, rows, ((1,), (1,))),
        }
        back = ((1, 2), (0, 2))
        self.dx = b.dot(dg, v["params.gate"], back) + b.dot(du, v["params.up"], back)
        of_weight = b.dot(self.o, self.dy, ((2,), (1,)), ((1,), (0,)))  # [tokens, experts]
        self.dweight = b.dot(self.here, of_weight, ((2,), (1,)), ((0,), (0,)))

    def _shared(self) -> None:
        b, v, x, dy = self.b, self.v, self.v["x"], self.v["dy"]
        h = x @ v["params.shared_in"]
        a = silu(b, h)
        self.common = a @ v["params.shared_out"]
        dh = dy @ v["params.shared_out"].T * silu_gradient(b, h)
        self.grad |= {"params.shared_in": x.T @ dh, "params.shared_out": a.T @ dy}
        self.dcommon = dh @ v["params.shared_in"].T

    def _results(self) -> tuple[Value, Value]:
        b, y, dx, dweight = self.b, self.y, self.dx, self.dweight
        own = lambda x: b.slice(x, [b.axis_index("ep").scale(self.n), 0], [self.n, x.shape[1]])  # noqa: E731
        if self._is("shared expert added before the reduction"):
            everyone = self.dispatched(self.common)
            y = self.combined(y + everyone)
        elif self._is("results reduced over tp first"):
            y = self.combined(self.total(y, "tp"))
        elif self._is("experts' results not combined"):
            y = own(y)
        else:
            y = self.combined(y)
        if self._is("results reduced over tp first"):
            y = y + self.total(self.common, "tp")
        elif self._is("shared expert left out on the ranks of tp"):
            y = self.total(y, "tp") + self.common
        elif self._is("shared expert reduced by itself"):
            y = self.total(y, "tp") + self.total(self.common, "tp")
        elif self._is("hidden units not combined"):
            y = y + self.common
        elif self._is("shared expert added before the reduction"):
            y = self.total(y, "tp")
        else:
            y = self.total(y + self.common, "tp")
        # router
        dweight = (
            own(dweight) if self._is("router gradient of the own experts only") else self.combined(dweight)
        )
        if not self._is("router gradient not summed over tp"):
            dweight = self.total(dweight, "tp")
        s = self.sum.like(self.chosen, 0)
        dchosen = dweight / s
        if not self._is("gradient of the normalisation left out"):
            dchosen = dchosen - ((dweight * self.chosen).sum(1) / (self.sum * self.sum)).like(s, 0)
        dp = b.dot(self.hot, dchosen * SCALE, ((1,), (1,)), ((0,), (0,)))
        dl = self.to_logits(dp)
        self.grad["params.router"] = self.v["x"].T @ dl
        dx = own(dx) if self._is("input gradient of the own experts only") else self.combined(dx)
        dx = self.total(dx + self.dcommon, "tp")
        return y, dx if self._is("input gradient without the router's") else dx + dl @ self.v[
            "params.router"
        ].T

    def _updates(self) -> None:
        b, v = self.b, self.v
        for name, grad in self.grad.items():
            if name in EXPERT_WEIGHTS:
                if not self._is("expert gradient not summed over dp"):
                    grad = self.total(grad, "dp")
                if self._is("expert gradient summed over ep"):
                    grad = self.total(grad, "ep")
                if self._is("expert gradient averaged over dp"):
                    grad = grad / self.sizes.dp
            else:
                axes = ["dp", "ep"]
                if name == "params.router":
                    axes = [a for a in axes if not self._is(f"router gradient not summed over {a}")]
                grad = self.total(grad, *axes)
            b.output(name, v[name] - b.broadcast(v["lr"], grad.shape) * grad)
        local = self.hot.sum(0, 1)
        counts = local if self._is("counts of the own tokens only") else self.total(local, "dp", "ep")
        b.output("counts", counts)
        counts = local if self._is("bias updated from local counts") else counts
        mean = b.broadcast(counts.sum(0) / self.sizes.experts, counts.shape)
        zero = mean * 0
        up, down = b.compare(mean, counts, "GT"), b.compare(mean, counts, "LT")
        step = b.convert(up, "f32") - b.convert(down, "f32")
        step = zero - step if self._is("bias updated with the other sign") else step
        b.output("bias", v["bias"] + step * Fraction(1, 1000))


class Slots(Layer):
    """A slot per expert and token goes to the expert by all-to-all, and its result back to the token."""

    def sent(self, x: Value) -> Value:
        """From slots of the own tokens for all experts to slots of all tokens for the own experts."""
        return self.b.all_to_all(x, "ep", 0, 1)

    def returned(self, x: Value) -> Value:
        return self.b.all_to_all(x, "ep", 1, 0)

    def combined(self, x: Value) -> Value:
        return x

    def _experts(self) -> None:
        b, v, experts = self.b, self.v, self.sizes.experts
        slots = (experts, self.n, WIDTH)
        x = self.sent(b.broadcast(v["x"], slots, (1, 2)))
        c = (self.hot * b.broadcast(self.weight, self.hot.shape, (0, 1))).sum(1)
        g, u = (b.dot(x, v[f"params.{w}"], ((2,), (1,)), ((0,), (0,))) for w in ("gate", "up"))
        a = silu(b, g) * u
        o = self.returned(b.dot(a, v["params.down"], ((2,), (1,)), ((0,), (0,))))
        self.y = b.dot(c, o, ((1,), (0,)), ((0,), (1,)))
        do = self.sent(b.broadcast(v["dy"], slots, (1, 2)) * b.broadcast(c.T, slots, (0, 1)))
        da = b.dot(do, v["params.down"], ((2,), (2,)), ((0,), (0,)))
        dg, du = da * u * silu_gradient(b, g), da * silu(b, g)
        rows = ((1,), (1,)), ((0,), (0,))
        products = {"params.gate": (x, dg), "params.up": (x, du), "params.down": (a, do)}
        self.grad = {name: b.dot(left, right, *rows) for name, (left, right) in products.items()}
        back = ((2,), (2,)), ((0,), (0,))
        dx = b.dot(dg, v["params.gate"], *back) + b.dot(du, v["params.up"], *back)
        self.dx = self.returned(dx).sum(0)
        of_weight = b.dot(o, v["dy"], ((2,), (1,)), ((1,), (0,)))
        self.dweight = b.dot(self.hot, of_weight, ((2,), (1,)), ((0,), (0,)))


class Packed(Layer):
    """Dispatch as it runs: rows sorted by expert, sent to the experts, grouped there, and all the way back.

    A row is a token and one of its choices. Without ranks the experts are all here and nothing is sent.
    """

    def combined(self, x: Value) -> Value:
        return x

    def _experts(self) -> None:
        b, v, k = self.b, self.v, self.sizes.chosen
        self._dispatch()
        p = self._there(self._slots(v["x"]))
        g, u = (self.by_expert.dot(p, v[f"params.{w}"]) for w in ("gate", "up"))
        g, u = (u, g) if self._is("gate and up exchanged") else (g, u)
        a = silu(b, g) * u
        out = self._back(self._spoiled(self.by_expert.dot(a, v["params.down"]))).reshape(self.n, k, WIDTH)
        weight, results = self.weight, out
        other = self._is("weights of another choice"), self._is("results of another choice")
        if any(other):
            weight, results = (
                b.concatenate([x[:, 1:], x[:, :1]], 1) if wrong else x
                for x, wrong in zip((weight, results), other, strict=True)
            )
        self.y = b.dot(weight, results, ((1,), (1,)), ((0,), (0,)))
        dout = b.broadcast(v["dy"], out.shape, (0, 2))
        if not self._is("gradients of the output without weights"):
            dout = dout * b.broadcast(self.weight, out.shape, (0, 1))
        if self._is("tokens sent instead of their gradients"):
            dout = b.broadcast(v["x"], out.shape, (0, 2))
        first = self.by_slot
        if self._is("gradients sorted again"):
            self._dispatch()
        q = self._there(dout.reshape(self.n * k, WIDTH))
        self.by_slot = first
        da = self.by_expert.dot(q, v["params.down"], 2)
        dg, du = da * u * silu_gradient(b, g), da * silu(b, g)
        products = {"params.gate": (p, dg), "params.up": (p, du), "params.down": (a, q)}
        self.grad = {name: self.by_expert.outer(*pair) for name, pair in products.items()}
        dx = self.by_expert.dot(dg, v["params.gate"], 2) + self.by_expert.dot(du, v["params.up"], 2)
        dx = self._back(dx).reshape(self.n, k, WIDTH)
        self.dx = dx[:, :1].sum(1) if self._is("gradient of one choice only") else dx.sum(1)
        self.dweight = b.dot(out, v["dy"], ((2,), (1,)), ((0,), (0,)))

    def _slots(self, x: Value) -> Value:
        """A copy of a token's row for each of its choices."""
        k = self.sizes.chosen
        if self._is("slots by choice instead of by token"):
            return self.b.broadcast(x, (k, *x.shape), (1, 2)).reshape(self.n * k, x.shape[1])
        return self.b.broadcast(x, (self.n, k, x.shape[1]), (0, 2)).reshape(self.n * k, x.shape[1])

    def _dispatch(self) -> None:
        keys = self.choice.reshape(self.n * self.sizes.chosen)
        self.by_slot = Rows.sorted(self.b, keys, self.sizes.experts)
        if self.ranks:
            self.arrived = self.by_slot.shipped("ep")
            self.by_expert = self.arrived.regrouped()
            if self._is("not regrouped at the experts"):
                self.by_expert = self.arrived
        else:
            self.by_expert = self.by_slot

    def _there(self, x: Value) -> Value:
        """From slots to rows grouped by expert, at the experts."""
        rows = self.by_slot.pack(x)
        if self._is("not regrouped at the experts"):
            return self.arrived.ship(rows)
        return self.by_expert.regroup(self.arrived.ship(rows)) if self.ranks else rows

    def _spoiled(self, x: Value) -> Value:
        """Rows of results, at the experts, with what takes them for rows in another order."""
        b = self.b
        if self._is("scores in slot order"):
            scores = b.all_gather(self.weight.reshape(self.n * self.sizes.chosen), "ep", 0)
            return x * b.broadcast(scores, x.shape, (0,))
        if self._is("summed over tp while packed"):
            return b.all_reduce(x, "tp")
        if self._is("rows added up without their order"):
            return x + b.broadcast(x.sum(0), x.shape, (1,))
        return x

    def _back(self, x: Value) -> Value:
        if self._is("not put back before the way back"):
            return self.by_slot.unpack(self.arrived.ship_back(x))
        if self._is("regrouped by a second order"):
            return self.by_slot.unpack(self.arrived.ship_back(self.arrived.regrouped().ungroup(x)))
        rows = self.arrived.ship_back(self.by_expert.ungroup(x)) if self.ranks else x
        if self._is("no un-permutation"):
            return rows
        if self._is("a second sort with another tie order"):
            keys = self.choice.reshape(self.n * self.sizes.chosen)
            return Rows.sorted(self.b, keys, self.sizes.experts).unpack(rows)
        return self.by_slot.unpack(rows)


#: Where the tensors of the specification lie on the mesh.
TOKENS: Mapping[str, Placement] = {"dp": Shard(0), "ep": Shard(0)}
LAYOUT: dict[str, Mapping[str, Placement]] = {
    "x": TOKENS,
    "choice": TOKENS,
    "dy": TOKENS,
    "bias": {},
    "lr": {},
    "params.router": {},
    "params.gate": {"ep": Shard(0), "tp": Shard(2)},
    "params.up": {"ep": Shard(0), "tp": Shard(2)},
    "params.down": {"ep": Shard(0), "tp": Shard(1)},
    "params.shared_in": {"tp": Shard(1)},
    "params.shared_out": {"tp": Shard(0)},
}


def experts(sizes: Sizes = Sizes(), way: str = "", *, packed: bool = False, alone: bool = False) -> Plan:
    """``way`` is one of :data:`REFUTED` or :data:`RIGHT`, or empty. With ``packed`` the ranks dispatch rows,
    with ``alone`` the specification sorts its rows too."""
    kind = Packed if packed else Slots if way == "slots sent to their experts" else Layer
    given = {n: p for n, p in LAYOUT.items() if n != "choice" or not sizes.groups}
    results: dict[str, Mapping[str, Placement]] = {"y": TOKENS, "dx": TOKENS, "counts": {}}
    return build_plan(
        name="experts", mesh=sizes.mesh,
        specification=(Packed if alone else Layer)(sizes, False, way).program().build(),
        classes=kind(sizes, True, way).program().build(),
        inputs=given,
        outputs=results | {n: p for n, p in given.items() if n.startswith("params.") or n == "bias"},
        ranges={} if sizes.groups else {"choice": (0, sizes.experts)},
        given=["x", "dy", "lr", *([] if sizes.groups else ["choice"])],
    )  # fmt: skip
