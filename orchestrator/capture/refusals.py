"""What capture refuses in a user's code, and what to write instead: two tables, of exceptions and of ops.

``docs/capture.md`` shows both tables; a test compares them.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.eval_frame as dynamo
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .errors import CaptureError, Frame, StepError
from .frames import is_users
from .missing import OPS

#: File and function of every frame between the user's code and where an exception was raised.
Places = Sequence[tuple[str, str]]

OUTSIDE = (
    'a buffer of the model (self.register_buffer("name", tensor) in place of self.name = tensor), an '
    "entry of the "
    "batch, what an optimizer keeps in self.state[parameter], or compute it in the step; a gradient "
    "of an earlier "
    "step needs zero_grad() before backward()"
)


class Compiled(Exception):
    """Compiled code is called while a step is traced."""


class Scaling(Exception):
    """An enabled GradScaler is used while a step is traced."""


@dataclass(frozen=True)
class Refusal:
    """One row: what a user's code does (``what``), what is said about it, and what to write instead.

    Without words of its own a row says the exception's message.
    """

    what: str
    when: Callable[[BaseException, Places], bool]
    says: str
    instead: str


def _of(*kinds: type[BaseException]) -> Callable[[BaseException, Places], bool]:
    return lambda error, _places: isinstance(error, kinds)


def _saying(*texts: str) -> Callable[[BaseException, Places], bool]:
    return lambda error, _places: any(text in str(error) for text in texts)


def _inside(file: str, *functions: str) -> Callable[[BaseException, Places], bool]:
    """Raised by a call into a file or folder of PyTorch, in a function whose name holds one of the texts."""

    def when(_error: BaseException, places: Places) -> bool:
        return any(
            (name.endswith(file) or (file.endswith("/") and file in name))
            and (not functions or any(f in function for f in functions))
            for name, function in places
        )

    return when


#: The first row that fits is taken.
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "`torch.cond`, `torch.while_loop`",
        _inside("torch/_higher_order_ops/cond.py", "cond"),
        "the value of a tensor decides which branch runs; a trace has no values",
        "torch.where(condition, a, b): both are computed",
    ),
    Refusal(
        "`flex_attention`",
        _saying("FlexAttention does not support backward on CPU"),
        "flex_attention has no backward pass on a CPU, where steps are traced",
        "F.scaled_dot_product_attention, with what mask and score functions give as attn_mask",
    ),
    Refusal(
        "sparse tensors (`nn.Embedding(…, sparse=True)`)",
        _saying("SparseTensorImpl"),
        "a sparse tensor, of which no plan knows how many elements there are",
        "a dense one: nn.Embedding(…, sparse=False)",
    ),
    Refusal(
        "subclasses of `Tensor` and `nn.Parameter` around a given one (`x.as_subclass(…)`)",
        _saying("Creating a new Tensor subclass"),
        "a tensor of the trace is made one of another class, which may run other ops",
        "the plain tensor, or functions on it",
    ),
    Refusal(
        "`torch.distributions` with `validate_args`, where its exception is handled",
        lambda e, p: isinstance(e, DataDependentOutputException) and _inside("torch/distributions/")(e, p),
        "a distribution looks at the values of its arguments, to validate them",
        "no handler around it, so that a job ends; or validate_args=False",
    ),
    Refusal(
        "a compiled module or function (`torch.compile`)",
        _of(Compiled),
        "the step calls code that torch.compile has compiled; what that runs, the compiler decides",
        "the eager module or function: build without torch.compile (model._orig_mod is the module inside)",
    ),
    Refusal(
        "`GradScaler`",
        lambda e, p: isinstance(e, Scaling) or _inside("torch/amp/grad_scaler.py")(e, p),
        "GradScaler skips a step if it finds an infinity: the step depends on values, which a trace has not",
        "the step without a scaler, in bfloat16 or float32; or loss.backward() and optimizer.step() directly",
    ),
    Refusal(
        "object collectives (`all_gather_object`, `broadcast_object_list`, …)",
        _inside("torch/distributed/distributed_c10d.py", "_object"),
        "an object collective sends pickled bytes, whose number depends on values",
        "a collective on tensors, or what is sent as an entry of the batch",
    ),
    Refusal(
        "`clip_grad_norm_(…, error_if_nonfinite=True)`, where its exception is handled",
        lambda e, p: (
            isinstance(e, DataDependentOutputException) and _inside("torch/nn/utils/clip_grad.py")(e, p)
        ),
        "clipping looks at the value of the norm to raise an error",
        "no handler around it, so that a job ends; or error_if_nonfinite=False",
    ),
    Refusal(
        "`torch.save`, `torch.load` and checkpoints in the step",
        _inside("torch/serialization.py"),
        "tensors of a trace have no values that could be saved or loaded",
        "checkpoints outside of the step: the training loop that calls it",
    ),
    Refusal(
        "`torch.jit.trace`, `torch.jit.script`, `torch.export` in the step",
        lambda e, p: any(_inside(f)(e, p) for f in ("torch/jit/_trace.py", "torch/jit/_script.py")),
        "the step translates a module by itself, which needs values",
        "the eager module",
    ),
    Refusal(
        "a `DataLoader` in the step",
        _inside("torch/utils/data/"),
        "the step draws its own batch from a DataLoader, which needs values",
        "entries of Definition.batch: the training loop draws them, and calls the step",
    ),
    Refusal(
        'a tensor in a text (`f"{loss:.3f}"`)',
        _saying("FakeTensor.__format__"),
        "a number is formatted from a tensor, which has no values in a trace",
        "print and log outside of the step, from what it returns",
    ),
    Refusal(
        "NumPy (`.numpy()`, `np.asarray(tensor)`)",
        _saying(".numpy() is not supported", "can't convert"),
        "a tensor is turned into a NumPy array, whose operations no trace sees",
        "the same operation of torch; what needs NumPy as an entry of the batch",
    ),
    Refusal(
        "shapes that depend on values (`masked_select`, `unique`, `bincount`)",
        _of(DynamicOutputShapeException),
        "the shape of the result depends on values, which a trace has not",
        "torch.where(mask, x, 0), or a product with the mask: all rows stay and the others count nothing; "
        "x[mask] where rows are only added up, or written back by the mask",
    ),
    Refusal(
        "the value of a tensor (`.item()`, `.tolist()`, `int(t)`, `if t`, `allclose`)",
        _of(DataDependentOutputException),
        "the value of a tensor becomes a Python number, or decides what runs next; a trace has no values",
        "torch.where(condition, a, b) for `if`; keep a number a tensor; or hand it over in the batch. What "
        "is logged is returned by the step, and logged in the loop that calls it",
    ),
    Refusal(
        "a number of rows that decides what runs (`if n == 0`, `range(n)`, `int(n)`)",
        _of(GuardOnDataDependentSymNode),
        "how many rows there are, which a routing decides, decides what runs next; a trace has no values",
        "the same ops for any number of rows, none too: torch._grouped_mm, and sizes from counts.tolist()",
    ),
    Refusal(
        'devices (`.cuda()`, `device="cuda"`, `torch.cuda.…`)',
        lambda e, p: (
            isinstance(e, FakeTensorDeviceMismatchError)
            or _saying(
                *(
                    "support for cuda",
                    "compiled with CUDA",
                    "dummy base class",
                    "NVIDIA",
                    "_cuda_",
                    "No CUDA",
                    "Invalid device",
                    "accelerator device",
                )
            )(e, p)
        ),
        "the code asks for a device that this machine does not have; a capture runs on a CPU",
        "no device at all, or that of a tensor at hand: torch.zeros(n, device=x.device)",
    ),
    Refusal(
        "`torch.__future__.set_swap_module_params_on_conversion(True)`",
        _saying("Couldn't swap"),
        "a conversion of a module exchanges two tensors (swap_tensors), which those of a trace cannot be",
        "set_swap_module_params_on_conversion(False), as PyTorch has it: parameters stay the same objects",
    ),
    Refusal(
        "`torch.distributed` in the single-device step",
        _saying("Default process group has not been initialized"),
        "there is no process group here: a single device has none",
        "code for ranks in parallelize or parallel_step, or behind `if dist.is_initialized():`",
    ),
    Refusal(
        "`init_process_group` in the file",
        _saying("initialize the default process group twice", "MASTER_ADDR", "environ:// rendezvous"),
        "the capture makes the process group itself, with as many ranks as the mesh",
        "no init_process_group, or only `if not dist.is_initialized():`",
    ),
    Refusal(
        "an optimizer without parameters",
        _saying("empty parameter list"),
        "the optimizer is given no parameters",
        "optimizer=lambda params: torch.optim.AdamW(params, …), with the parameters it is given, read once",
    ),
    Refusal(
        "custom ops without a fake implementation",
        lambda e, p: (
            isinstance(e, UnsupportedOperatorException)
            or _saying("from the 'Meta' backend", "no fake impl registered")(e, p)
        ),
        "an op has no rule for the shape of its result, so that it cannot be traced",
        "torch.library.register_fake for it, or the ops of PyTorch that it stands for",
    ),
    Refusal(
        "`monitored_barrier`",
        _saying("monitored_barrier is only"),
        "monitored_barrier is gloo's own; ranks are captured as NCCL would run them",
        "dist.barrier(), or nothing: the order of collectives is that of the program",
    ),
    Refusal(
        "`split_group`",
        _inside("torch/distributed/distributed_c10d.py", "split_group"),
        "split_group asks for a device that the default process group is bound to, which a capture has not",
        'dist.new_group(ranks) in parallelize, by all ranks; or the group of an axis: mesh["dp"].get_group()',
    ),
    Refusal(
        "plain tensors and DTensors in one op",
        _saying("mixed torch.Tensor and DTensor"),
        "an op is given a plain tensor and a DTensor, which PyTorch refuses in a job, too",
        "a DTensor of the plain one (distribute_tensor(t, mesh, [Replicate()])), or x.to_local() or "
        "x.full_tensor() of "
        "the other; a loop over gradients is of one kind if all parameters are distributed",
    ),
    Refusal(
        "an axis that the mesh does not have",
        _saying("mesh_dim_name"),
        "",
        "the name of an axis of Definition.mesh",
    ),
    Refusal(
        "a buffer or parameter under a name that the module has (`register_buffer`)",
        _inside("torch/nn/modules/module.py", "register_buffer", "register_parameter", "register_module"),
        "",
        "one name for each: register it once, in __init__, and not after self.name = …; later "
        "self.name = tensor "
        "or self.name.copy_(tensor)",
    ),
    Refusal(
        "a key that a mapping does not have",
        _of(KeyError),
        "",
        "a key that it has; the step's batch has the names of Definition.batch",
    ),
    Refusal(
        "a loss that no parameter reaches",
        _saying("does not require grad"),
        "",
        "a loss of trainable parameters: requires_grad, and no detach() or no_grad() on the way",
    ),
    Refusal(
        "shapes that do not fit",
        _saying(
            *("must match", "reduction dim", "invalid for input of size", "cannot be multiplied"),
            *("size mismatch", "expected size", "Expected size", "inconsistent tensor size", "not divisible"),
        ),
        "",
        "shapes that fit: a rank is given the batch of Definition.batch divided over the axes of its `shard`",
    ),
)


def frame_of(error: BaseException) -> Frame | None:
    """The innermost line of the user's code that an exception passed through."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno, ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    return (frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None


def refused(error: BaseException) -> CaptureError:
    """What a user is told of an exception that left their code: one sentence, their line, what to write."""
    if isinstance(error, CaptureError):
        return error.at(frame_of(error))
    places = [(f.filename, f.name) for f in traceback.extract_tb(error.__traceback__)]
    row = next((r for r in REFUSALS if r.when(error, places)), None)
    says = sentence(error) if row is None or not row.says else row.says
    text = "".join(traceback.format_exception(error))
    return StepError(
        says, traceback=text, frame=frame_of(error), instead=None if row is None else row.instead
    )


def sentence(error: BaseException) -> str:
    """Type and first lines of an exception's message, in one line."""
    if isinstance(error, SystemExit):
        return f"the code ends the program: sys.exit({error.code!r})"
    words = (error.msg if isinstance(error, SyntaxError) else str(error)).split()
    text = " ".join(words)
    kind = type(error).__name__
    return f"{kind}: {text[:500]}{'…' * (len(text) > 500)}" if text else kind


@contextmanager
def scalers_noted() -> Iterator[None]:
    """A GradScaler remembers that it is meant to scale: without CUDA it would disable itself, and vanish."""
    kind: Any = torch.amp.GradScaler
    original = kind.__init__
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():  # no more than this one, and for no one else
            warnings.filterwarnings("ignore", message=".*GradScaler is enabled, but CUDA is not available")
            original(self, *args, **kwargs)
        bound = parameters.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.wanted = bound.arguments["enabled"]

    kind.__init__ = init
    try:
        yield
    finally:
        kind.__init__ = original


@contextmanager
def guarded() -> Iterator[None]:
    """What would silently run something else under a trace than it does in a job raises when it is called.

    These are compiled code, which runs as if it were not, and scalers.
    """
    original, kind = dynamo._callback_from_stance, torch.amp.GradScaler
    methods = {name: getattr(kind, name) for name in ("scale", "step", "unscale_")}

    def callback(given: Any) -> Any:
        if given not in (None, False):
            raise Compiled
        return original(given)

    def scaling(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "wanted", self.is_enabled()):
                raise Scaling
            return method(self, *args, **kwargs)

        return call

    dynamo._callback_from_stance = callback
    for name, method in methods.items():
        setattr(kind, name, scaling(method))
    try:
        with scalers_noted():
            yield
    finally:
        dynamo._callback_from_stance = original
        for name, method in methods.items():
            setattr(kind, name, method)


def documented() -> str:
    """Both tables as ``docs/capture.md`` shows them."""
    rows = [(row.what, row.instead) for row in REFUSALS] + [(row.what, row.instead) for row in OPS]
    return (
        "\n".join(
            [
                "| what cannot be captured | what to write instead |",
                "| --- | --- |",
                *(f"| {a} | {b} |" for a, b in rows),
            ]
        )
        + "\n"
    )
