"""Views, mutation and buffers filled in pieces, as values."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from certificates.plan.types import TensorType
from orchestrator.capture import Batch, Definition, capture, memory
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.errors import AliasingError, CaptureError, ClosureError, LoweringError
from trainverify import Kind, verify

x = torch.arange(24, dtype=torch.float64).reshape(4, 6)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.t(),
        lambda a: a[1:3, 2:5],
        lambda a: a.view(2, 2, 3, 2).permute(2, 0, 3, 1),
        lambda a: a.unsqueeze(1).expand(4, 3, 6),
        lambda a: a[2],
        lambda a: a[:, 3],
        lambda a: a.flatten()[5:17].view(3, 4),
        lambda a: a.as_strided((3, 2), (6, 1), 8),
        lambda a: a.t().reshape(3, 8).split(2, dim=1)[1],
        lambda a: a.view(4, 2, 3).transpose(0, 1).flatten(1),
    ],
)
def test_views(agrees, view) -> None:
    agrees(lambda a: view(a) * 2, x)


def test_writes_are_seen_through_other_views(agrees) -> None:
    def step(a):
        a = a.clone()
        left, flat = a[:, :3], a.view(-1)
        left.mul_(10)
        flat[20:].zero_()
        a[1:2].add_(left[:1].sum())
        return a, left + 1, flat

    agrees(step, x)


def test_a_buffer_filled_in_pieces(agrees) -> None:
    def step(a):
        buffer = torch.empty(24, dtype=a.dtype)
        parts = buffer.split([6, 12, 6])
        torch._foreach_copy_(parts, [a[3], a[:2].reshape(-1), a[2]])
        out = [torch.empty(2, 3, dtype=a.dtype), torch.empty(2, 9, dtype=a.dtype)]
        torch.split_with_sizes_copy(buffer.view(2, 12), [3, 9], dim=1, out=out)
        return (buffer, *out)

    agrees(step, x)


def test_out_argument_and_copy(agrees) -> None:
    def step(a):
        out = torch.empty_like(a)
        torch.add(a, a, out=out)
        target = torch.zeros(6, 4, dtype=a.dtype)
        target.t().copy_(out)
        return target

    agrees(step, x)


def test_uninitialised_memory_is_an_unconstrained_input(lowered) -> None:
    def step(a):
        buffer = torch.empty(8, dtype=a.dtype)
        buffer[:6] = a[0]
        return buffer

    program = lowered(step, x)
    assert list(program.inputs) == ["x0", "uninitialised.0"]
    assert str(program.inputs["uninitialised.0"]) == "f64[2]"


@pytest.mark.parametrize(
    "use",
    [
        lambda a, empty: a + empty.mul_(0),
        lambda a, empty: a + (empty - empty),
        lambda a, empty: a + 0 * empty.sum(),
        lambda a, empty: a + (empty[:, 1:].reshape(-1) * 0).sum(),
        lambda a, empty: torch.where(empty > 0, a, a),
    ],
)
def test_what_nothing_has_written_may_be_no_number(lowered, use) -> None:
    """0 times NaN is no 0: a plan of real numbers proves it, and a run may give NaN."""
    with pytest.raises(ClosureError, match="nothing has written, which may hold no number"):
        lowered(lambda a: use(a, torch.empty_like(a)), x)


def test_what_is_not_chosen_may_be_anything(lowered) -> None:
    lowered(lambda a: torch.where(a > 0, a, torch.empty_like(a)), x)


def test_unused_uninitialised_memory_is_no_input(lowered) -> None:
    def step(a):
        buffer = torch.empty_like(a)
        return buffer.copy_(a)

    assert list(lowered(step, x).inputs) == ["x0"]


def test_a_tensor_from_outside_is_refused(lowered) -> None:
    with pytest.raises(ClosureError, match="no parameter, buffer, batch input") as caught:
        lowered(lambda a, b: a + b, x, outside=[torch.randn(4, 6)])
    assert caught.value.op == "aten.add.Tensor" and caught.value.tensor == "f32[4,6]"


def test_an_outside_tensor_that_no_output_needs_is_fine(lowered) -> None:
    def step(a, b):
        b.exp()
        return a + 1

    lowered(step, x, outside=[torch.randn(3)])


def test_memory_freed_between_steps_must_be_written_again(lowered) -> None:
    def step(a):
        buffer = a.clone()
        buffer.untyped_storage().resize_(0)
        buffer.untyped_storage().resize_(24 * 8)
        return buffer + 1

    with pytest.raises(ClosureError):
        lowered(step, x)


def test_a_real_tensor_that_the_step_changes_is_followed(lowered, agrees) -> None:
    def step(a):
        counter = torch.zeros(())
        counter.add_(1)
        return a * counter

    agrees(step, x)
    kept = torch.zeros(())

    def step_with_global(a):
        kept.add_(1)
        return a * kept

    program = lowered(step_with_global, x)
    assert [d.name for d in program.drafts if d.name in ("add", "multiply")] == ["add", "multiply"]


def test_inputs_that_share_memory_are_refused(lowered) -> None:
    both = torch.ones(3)
    with pytest.raises(AliasingError, match=r"shared with another input.*x1"):
        lowered(lambda a, b: a + b, both, both)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((3, 3), (7, 2), 1), ((2, 3, 2), (11, 3, 2), 0), ((4,), (5,), 3), ((2, 2), (10, 3), 5)],
)
def test_strides_need_not_divide_one_another(agrees, size, stride, offset) -> None:
    """Every second column of a matrix with an odd number of them, read and written."""
    x = torch.arange(23, dtype=torch.float64)

    def function(a):
        b = a.clone()
        b.as_strided(size, stride, offset).mul_(3)
        return a.as_strided(size, stride, offset) + 1, b

    agrees(function, x)


def test_a_refused_write_through_a_strided_view_says_why(lowered) -> None:
    def function(a, n):
        n = n.clone()
        n[:, ::2] = a[:, ::2]
        return n

    with pytest.raises(LoweringError, match="rounds and has no exact meaning"):
        lowered(function, torch.randn(3, 4), torch.ones(3, 4, dtype=torch.int64))


def test_a_write_through_an_overlapping_view_is_refused(lowered) -> None:
    """Which of the values that fall on one element stays is not said."""

    def function(a):
        b = a.clone()
        b.as_strided((4, 4), (2, 1), 0).copy_(a[:, :4])
        return b

    with pytest.raises(AliasingError, match=r"a write through the view .* which visits an element twice"):
        lowered(function, x)


@pytest.mark.parametrize("seed", range(8))
def test_columns_of_a_larger_tensor_are_an_input(agrees, seed) -> None:
    """A parameter may be a view of a whole one, with what is nobody's between its elements."""
    rng = random.Random(seed)
    first, step = rng.randint(0, 2), rng.randint(1, 2)
    columns = torch.randn(5, 3, 8, dtype=torch.float64)[:, :, first : first + 5 : step]

    def function(a):
        seen = [a.transpose(0, 2) * 2, a[1:, 0], a.permute(2, 0, 1)[1] + 1]
        a.mul_(a + 1)
        a[:, 1:2].add_(3)
        return (*seen, a.transpose(1, 2).sum(0), a.permute(1, 2, 0).reshape(-1))

    agrees(function, columns)


def test_what_stands_between_the_elements_of_an_input_is_not_the_inputs(lowered) -> None:
    """It is read as what nobody knows, and stays what the step writes there."""
    whole = torch.randn(4, 6, dtype=torch.float64)

    def beside(a):
        return a.as_strided((4, 6), (6, 1), 0) + 1

    assert "uninitialised.0" in lowered(beside, whole[:, :3]).inputs

    def written(a):
        everything = a.as_strided((4, 6), (6, 1), 0)
        everything.copy_(torch.ones(4, 6, dtype=a.dtype) * 2)
        return a + everything.sum()

    assert "uninitialised.0" not in lowered(written, whole[:, :3]).inputs


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.as_strided((4, 4), (2, 1), 0),
        lambda a: a.as_strided((2, 3, 5, 2), (6, 0, 2, 3), 1),
        lambda a: a.unfold(1, 3, 1),
        lambda a: a.unfold(0, 2, 1).unfold(1, 4, 2),
        lambda a: a.t().unfold(0, 4, 1)[1:].transpose(0, 2),
    ],
)
def test_windows_that_overlap_are_slices(agrees, view) -> None:
    agrees(lambda a: view(a) * 2, x)


def test_a_view_of_very_many_windows_is_refused(lowered) -> None:
    with pytest.raises(AliasingError, match="more than 64 slices that overlap") as caught:
        lowered(lambda a: a.unfold(0, 70, 1) + 1, torch.randn(200, dtype=torch.float64))
    assert caught.value.op == "aten.add.Tensor"


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.add_(a[0]),
        lambda a: a.sub_(a[:, 2:3]),
        lambda a: a[:, 1:].copy_(a[:, :-1]),
        lambda a: torch.mul(a, a[:, :1], out=a),
    ],
)
def test_an_op_that_writes_what_it_still_reads_is_refused(agrees, write) -> None:
    """PyTorch's result depends on the order in which it goes through the elements."""

    def step(a):
        a = a.clone()
        write(a)
        return a

    with pytest.raises(AliasingError, match="writes memory that it also reads elsewhere"):
        agrees(step, x)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.add_(a),
        lambda a: a[:, 0].add_(a[:, 1]),
        lambda a: a[::2].mul_(a[1::2]),
        lambda a: a[:, :3].copy_(a[:, 3:]),
        lambda a: a.add_(a[0].clone()),
        lambda a: a.view(2, 2, 6)[:, 0].copy_(a.view(2, 2, 6)[:, 1]),
    ],
)
def test_an_op_may_read_other_parts_of_what_it_writes(agrees, write) -> None:
    def step(a):
        a = a.clone()
        write(a)
        return a

    agrees(step, x)


def test_a_constant_whose_data_are_rebound_is_forgotten(agrees) -> None:
    """PyTorch's fake tensors remember what ``torch.tensor`` was told, and make views of that."""

    def step(a):
        number, other = torch.tensor(0.5, dtype=a.dtype), torch.tensor(2.0, dtype=a.dtype)
        number.data = number.detach().clone() * a[0, 1]
        a[0].data = other
        number.add_(1)
        return number.view(1), number.detach() * a

    agrees(step, x)


def test_a_constant_whose_data_are_rebound_has_no_known_value(agrees) -> None:
    def step(a):
        number = torch.tensor(3.0, dtype=a.dtype)
        number.data = a.sum()
        return a * number.item()

    with pytest.raises(Exception, match="_local_scalar_dense"):
        agrees(step, x)


def test_a_tensor_that_is_set_to_another_one_names_its_elements(agrees) -> None:
    """Writes through either are writes to both; what was its memory keeps what it had."""

    def step(a):
        row, whole = a[0], torch.zeros_like(a)
        before = whole.view(-1)
        whole.set_(a.detach())
        whole.add_(1)
        row.mul_(2)
        return whole, before, a * 1

    agrees(step, x)


def test_a_constant_that_another_tensor_is_set_to_has_no_known_value(agrees) -> None:
    def step(a):
        number, other = torch.tensor(3.0, dtype=a.dtype), torch.empty((), dtype=a.dtype)
        other.set_(number)
        other.add_(a.sum())
        return a * number.item()

    with pytest.raises(Exception, match="_local_scalar_dense"):
        agrees(step, x)


def test_memory_that_a_step_drops_is_not_taken_for_what_comes_later(agrees) -> None:
    """The storage of an input that is rebound is freed; a new tensor may come to lie at its address."""

    def step(a):
        a.data = torch.zeros(2, dtype=a.dtype)
        numbers = [torch.tensor(float(i), dtype=torch.float64) for i in range(40)]
        return a + torch.stack([*numbers[:2]]), numbers[7] * 2

    agrees(step, x)


@pytest.mark.parametrize("seed", range(25))
def test_random_writes_into_one_storage_are_read_back_through_any_view(agrees, seed) -> None:
    """Slices that overlap, rows, columns and strided views, in any order."""
    rng = random.Random(seed)

    def flat() -> tuple[tuple[int, ...], tuple[int, ...], int]:
        first = rng.randrange(20)
        return (rng.randint(1, 24 - first),), (1,), first

    def box() -> tuple[tuple[int, ...], tuple[int, ...], int]:
        row, column = rng.randrange(4), rng.randrange(6)
        return (rng.randint(1, 4 - row), rng.randint(1, 6 - column)), (6, 1), 6 * row + column

    def strided() -> tuple[tuple[int, ...], tuple[int, ...], int]:
        stride, first = rng.randint(2, 7), rng.randrange(6)
        return (rng.randint(1, (23 - first) // stride + 1),), (stride,), first

    views = [rng.choice([flat, box, strided])() for _ in range(6)]

    def step(a):
        buffer = torch.full((24,), 7.0, dtype=a.dtype) if seed % 2 else a.clone().view(-1)
        seen = []
        for k, (size, stride, first) in enumerate(views):
            view = buffer.as_strided(size, stride, first)
            if k % 2:
                seen.append(view * 2)
            else:
                view.copy_(a.flatten()[: view.numel()].view(size) + 100 * k)
        return (buffer, *seen)

    agrees(step, x)


def test_a_storage_has_the_type_of_what_was_written_to_it_first() -> None:
    """What was read of it before is nobody's; what another type reads or writes later has no meaning."""
    b = Builder()
    held = memory.Memory(b, lambda type_, _fresh: b.input(f"missing.{len(b.inputs)}", type_))
    place, half = memory.Geometry.contiguous((4,)), memory.Geometry.contiguous((2,))
    reals, whole = b.input("x", TensorType("f32", (4,))), b.input("n", TensorType("i32", (4,)))
    assert held.read(0, "f32", place).name == "missing.2", "nobody wrote it"
    held.write(0, "i32", place, whole)
    assert held.read(0, "i32", place) == whole
    with pytest.raises(AliasingError, match="a storage of i32 is written as f32"):
        held.write(0, "f32", place, reals)
    with pytest.raises(AliasingError, match="a storage of i32 is read as f32"):
        held.read(0, "f32", half)


def test_what_a_write_leaves_of_a_segment_is_never_empty() -> None:
    """An empty tensor has no place in a plan."""
    b = Builder()
    held = memory.Memory(b, lambda type_, _fresh: b.input(f"missing.{len(b.inputs)}", type_))

    def write(start: int, end: int) -> Value:
        value = b.input(f"x{len(b.inputs)}", TensorType("f32", (end - start,)))
        held.write(0, "f32", memory.Geometry.contiguous((end - start,), start), value)
        return value

    for start, end in ((0, 8), (0, 2), (6, 8), (2, 6), (0, 8), (3, 5), (2, 5), (3, 6)):
        write(start, end)
    assert all(draft.type.size for draft in b.drafts.values())
    assert held.read(0, "f32", memory.Geometry.contiguous((8,))).shape == (8,)


def test_memory_that_is_filled_only_in_part_is_an_input_elsewhere(lowered) -> None:
    def step(a):
        buffer = torch.empty(10, dtype=a.dtype)
        buffer[2:5] = a[0, :3]
        buffer[7:9] = a[1, :2]
        return buffer * 2

    program = lowered(step, x)
    made = [t.shape for n, t in program.inputs.items() if n.startswith("uninitialised")]
    assert sorted(made) == [(1,), (2,), (2,)]


def padded(start: int, *, alone: bool = False) -> Definition:
    """Ranks keep a weight in longer memory, as FSDP pads its shards, and read all of that."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        flat = model.w.new_zeros(6)
        flat[:4] = model.w.detach()
        model.w = nn.Parameter(flat[:4])
        return model

    def step(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"y": (batch["x"] * model.w).sum()}

    def beyond(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        whole = model.w.detach().as_strided((6,), (1,))
        return {"y": (batch["x"] * (whole * 2)[start : start + 4] / 2).sum()}

    return Definition(
        name="padded",
        mesh={"dp": 2},
        build=Scale,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=beyond if alone else step,
        parallel_step=beyond,
        batch={"x": Batch((4,))},
        layouts={"w": {}},
    )


@pytest.mark.parametrize(("start", "kind"), [(0, Kind.PROVED), (2, Kind.REFUTED)])
def test_what_lies_beside_a_state_may_be_anything(start: int, kind: Kind) -> None:
    """A rank may read it, as long as no output depends on it."""
    plan = capture(padded(start), jobs=1)
    assert any(n.startswith("uninitialised") for c in plan.classes for n in c.program.inputs)
    assert verify(plan, jobs=1).kind is kind


def test_the_single_device_reads_nothing_beside_a_state() -> None:
    with pytest.raises(CaptureError, match="no parameter, buffer, batch input"):
        capture(padded(0, alone=True), jobs=1)
