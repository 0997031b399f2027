# SPDX-License-Identifier: Apache-2.0
"""`F.scaled_dot_product_attention` and the modules made of it, against PyTorch on the CPU in float64.

Letters: B batch, H heads, T queries, S keys, D head size. The bounds add up, element by element, what roundings of
unit u can do: with W the weights, every weight is off by at most `e` of itself, e = 4 u (largest score (D + 3) + S).
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from helpers import Traced, engine
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trnlab import chips
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session

INF = float("inf")
UNITS = {"fp32": 2.0**-24, "bf16": 2.0**-8}


@dataclass(frozen=True)
class Form:
    """One way to call attention; `mask` makes the mask of (T, S)."""

    q: tuple[int, ...] = (2, 2, 9, 16)
    k: tuple[int, ...] = (2, 2, 13, 16)
    v: tuple[int, ...] | None = None
    mask: str = "none"
    causal: bool = False
    scale: float | None = None
    gqa: bool = False

    def __str__(self):
        return "-".join(f"{v}" for k, v in vars(self).items() if v != getattr(Form, k))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def hidden(t, s, *lead):
    """A truth value per score, of which whole rows are False."""
    keep = normal(*lead, t, s, seed=7) > 0.3
    keep[..., t // 2, :] = False
    return keep


MASKS = {
    "none": lambda t, s: None,
    "bool": hidden,
    "nothing seen": lambda t, s: torch.zeros(t, s, dtype=torch.bool),
    "bool of keys": lambda t, s: normal(2, 1, 1, s) > 0,
    "bool of queries": lambda t, s: normal(t, 1) > 0,
    "bool per head": lambda t, s: hidden(t, s, 2),
    "left padding": lambda t, s: torch.arange(s)[None] >= torch.tensor([[3], [0]])[:, :, None, None].view(2, 1, 1, 1),
    "infinite": lambda t, s: torch.where(hidden(t, s), 0.0, -INF),
    "infinite and others": lambda t, s: torch.where(hidden(t, s), normal(t, s), -INF),
    "lowest": lambda t, s: torch.where(hidden(t, s), 0.0, torch.finfo(torch.float32).min),
    "float per head": lambda t, s: normal(2, 2, t, s),
    "float of keys": lambda t, s: normal(s)[None],
    "large": lambda t, s: torch.where(hidden(t, s), 1e4, 9e3),
    "needs a gradient": lambda t, s: normal(2, 1, t, s),
}

FORMS = [
    *(Form(mask=name) for name in MASKS),
    *(Form(mask=name, causal=True) for name in ("none", "bool", "left padding", "infinite and others", "lowest")),
    *(Form(causal=True, q=(1, 2, t, 16), k=(1, 2, s, 16)) for t, s in ((9, 5), (5, 9), (1, 7), (7, 1), (130, 129))),
    *(Form(scale=scale, mask=mask) for scale in (0.0, -0.5, 1.0, 1e-3) for mask in ("none", "bool", "float of keys")),
    *(Form(q=(2, 4, 9, 16), k=(2, heads, 13, 16), gqa=True, mask="bool") for heads in (1, 2)),
    Form(q=(2, 4, 9, 16), k=(2, 1, 13, 16)),
    *(Form(v=(2, 2, 13, 24), mask=mask) for mask in ("none", "bool", "float per head", "needs a gradient")),
    Form(v=(2, 2, 13, 5), mask="lowest", causal=True),
    Form(q=(1, 4, 40, 192), k=(1, 2, 40, 192), v=(1, 2, 40, 128), gqa=True, causal=True),
    Form(q=(1, 2, 9, 16), k=(1, 2, 13, 16), v=(1, 2, 13, 257), mask="bool"),
    Form(q=(1, 2, 150, 64), k=(1, 2, 140, 64), v=(1, 2, 140, 200), mask="float of keys", scale=-0.5),
    Form(q=(9, 16), k=(13, 16), mask="bool"),
    Form(q=(3, 9, 16), k=(2, 3, 13, 16)),
    Form(q=(2, 1, 2, 9, 16), k=(2, 3, 2, 13, 16)),
    Form(q=(1, 1, 1, 1), k=(1, 1, 1, 1)),
    Form(q=(1, 1, 140, 160), k=(1, 1, 150, 160), mask="bool", causal=False),
    Form(q=(1, 1, 140, 160), k=(1, 1, 140, 160), causal=True),
    Form(q=(1, 1, 20, 300), k=(1, 1, 20, 300), causal=True, mask="bool"),
    Form(q=(1, 2, 260, 32), k=(1, 2, 600, 32), mask="bool"),
]


def inputs(form):
    """q, k, v, and the mask or None."""
    tensors = [normal(*shape, seed=i) for i, shape in enumerate((form.q, form.k, form.v or form.k))]
    return tensors, MASKS[form.mask](form.q[-2], form.k[-2])


def call(form, q, k, v, mask):
    """The function that is tested; is_causal with a mask is what both leave (PyTorch's plain path refuses it)."""
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=form.causal, scale=form.scale, enable_gqa=form.gqa)


def reference(form, tensors, mask):
    """Output and gradients in float64 by PyTorch's plain path, and a bound of each by the rounding unit."""
    leaves = [x.double().requires_grad_() for x in tensors]
    if form.causal and mask is not None:
        below = torch.ones(form.q[-2], form.k[-2], dtype=torch.bool).tril()
        mask, form = (
            (mask & below if mask.dtype == torch.bool else mask.masked_fill(~below, -INF)),
            replace(form, causal=False),
        )
    mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    if form.mask == "needs a gradient":
        leaves.append(mask.requires_grad_())
        mask = leaves[-1]
    with sdpa_kernel(SDPBackend.MATH):
        out = call(form, *leaves[:3], mask)
        weights = normal(*out.shape, seed=5).double()
        grads = torch.autograd.grad((out * weights).sum(), leaves)
    magnitude = 1 + max(x.abs().max() for x in tensors) ** 4
    size, keys = form.q[-1], form.k[-2]
    score = (form.scale if form.scale is not None else size**-0.5) * magnitude**0.5
    off = 4 * (abs(score) * (size + 3) + 20)
    return out, grads, weights, lambda u: u * off * magnitude * math.sqrt(keys + form.q[-2])


def agree(got, expected, bound, unit):
    assert got.shape == expected.shape
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(got), finite)
    assert (got.double() - expected)[finite].abs().max().item() <= bound(unit) if finite.any() else True


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_forward_and_backward(form):
    """Interpreter, compiled program on each chip, and eager mode on `neuron`."""
    tensors, mask = inputs(form)
    out, grads, weights, bound = reference(form, tensors, mask)
    given = [*tensors, *([mask] if mask is not None else [])]
    trained = 4 if form.mask == "needs a gradient" else 3

    def function(*args):
        *operands, into = args
        leaves = [x.detach().requires_grad_(i < trained) for i, x in enumerate(operands)]
        y = call(form, *leaves[:3], leaves[3] if mask is not None else None)
        return y, *torch.autograd.grad((y * into).sum(), leaves[:trained])

    with torch.enable_grad():
        traced = Traced(function, [*given, weights.float()])
        results = {on: traced.run(on)[0] for on in ("interpreter", "trn1", "trn2", "trn3")}
        results["eager"] = [x.cpu() for x in function(*(x.to("neuron") for x in (*given, weights.float())))]
    for got in results.values():
        for a, b in zip(got, (out, *grads), strict=True):
            agree(a, b, bound, UNITS["fp32"])


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[8], FORMS[14], FORMS[19]], ids=str)
def test_torch_compile_with_and_without_gradients(form):
    """Training, no_grad and inference mode, in fp32 and bf16."""
    tensors, mask = inputs(form)
    out, grads, weights, bound = reference(form, tensors, mask)
    on_device = [x.to("neuron") for x in tensors]
    mask = None if mask is None else mask.to("neuron")
    for precision, unit in UNITS.items():
        torch._dynamo.reset()
        with session.activate(session.Session(chips.target("trn1.2xlarge"), precision)):
            compiled = torch.compile(lambda *args: call(form, *args), backend="neuron")
            leaves = [x.detach().requires_grad_() for x in on_device]
            y = compiled(*leaves, mask)
            found = torch.autograd.grad((y * weights.float().to("neuron")).sum(), leaves)
            for a, b in zip((y, *found), (out, *grads)):
                agree(a.detach().cpu(), b, bound, unit)
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    agree(compiled(*on_device, mask).cpu(), out, bound, unit)


@pytest.mark.parametrize("place", ["q", "k", "v"])
@pytest.mark.parametrize("number", [INF, -INF, float("nan")])
@pytest.mark.parametrize("mask", ["none", "bool of keys", "float of keys"])
def test_what_is_not_finite_travels(place, number, mask):
    """Where PyTorch's plain path has a NaN or an infinity, and nowhere else."""
    tensors, mask = inputs(Form(mask=mask))
    tensors["qkv".index(place)][1, 0, 4, 3] = number
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*tensors, mask)
    given = [*tensors, *([mask] if mask is not None else [])]
    traced = Traced(lambda *args: F.scaled_dot_product_attention(*args), given)
    for on in ("interpreter", "trn1", "trn3"):
        (got,), _ = traced.run(on)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_dropout_of_the_weights():
    """Each weight is zero or scaled up, at the rate asked for, independently of other layers; hidden ones zero."""
    t, s, p = 64, 96, 0.25
    q, k, v = torch.zeros(2, 2, t, 8), torch.zeros(2, 2, s, 8), torch.eye(s).expand(2, 2, s, s)

    def function(q, k, v):
        first = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return first, F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

    (plain, causal), _ = Traced(function, [q, k, v]).run("trn1")
    kept = plain != 0
    assert torch.allclose(plain[kept], torch.tensor(1 / s / (1 - p)), rtol=1e-5)
    assert abs(kept.float().mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / kept.numel())
    below = torch.ones(t, s, dtype=torch.bool).tril().expand_as(causal)
    assert not causal[~below].any()
    both = (kept & (causal != 0))[below].float().mean()
    assert abs(both - (1 - p) ** 2) < 5 * math.sqrt(0.25 / int(below.sum()))


MODULES = {
    "self": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), lambda m, x, y, pad, causal: m(x, x, x)[0]),
    "padding": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda m, x, y, pad, causal: m(x, x, x, key_padding_mask=pad, need_weights=False)[0],
    ),
    "causal and padding": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda m, x, y, pad, causal: m(x, x, x, key_padding_mask=pad, attn_mask=causal < 0, need_weights=False)[0],
    ),
    "bias and zeros": (
        lambda: nn.MultiheadAttention(16, 4, add_bias_kv=True, add_zero_attn=True),
        lambda m, x, y, pad, causal: m(x, x, x, need_weights=False)[0],
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), 2),
        lambda m, x, y, pad, causal: m(x, src_key_padding_mask=pad),
    ),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True),
        lambda m, x, y, pad, causal: m(x, y, tgt_mask=causal, tgt_is_causal=True),
    ),
    "transformer": (
        lambda: nn.Transformer(16, 4, 1, 1, 32, 0.0, batch_first=True),
        lambda m, x, y, pad, causal: m(y, x, tgt_mask=causal, tgt_is_causal=True),
    ),
}


class Called(nn.Module):
    """A module as a loss."""

    def __init__(self, module, function):
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args):
        out = self.function(self.module, *args)
        weights = torch.arange(out.numel(), device=out.device).to(torch.float32).reshape(out.shape) / 64 - 0.3
        return (out * weights).sum()


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_and_evaluate(name):
    """PyTorch's modules in a captured step: the update, which is the gradient; and the loss without gradients."""
    torch.manual_seed(4)
    make, function = MODULES[name]
    model = Called(make(), function)
    x, y = normal(2, 7, 16), normal(2, 7, 16, seed=3)
    pad = torch.tensor([[True] * 3 + [False] * 4, [False] * 5 + [True] * 2])
    causal = torch.full((7, 7), -INF).triu(1)
    batch = (x, y, pad, causal)
    twin = copy.deepcopy(model).to("neuron")
    loss = model(*batch)
    loss.backward()
    with engine("trn1"):
        step = compile_step(twin, torch.optim.SGD(twin.parameters(), lr=1.0))
        before = {n: p.detach().cpu().clone() for n, p in twin.named_parameters()}
        assert abs(step(*(t.to("neuron") for t in batch)).item() - loss.item()) < 1e-4
    largest = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
    for n, p in model.named_parameters():
        moved = before[n] - dict(twin.named_parameters())[n].detach().cpu()
        wanted = torch.zeros_like(p) if p.grad is None else p.grad
        assert (moved - wanted).abs().max() <= 1e-5 * largest


def test_long_sequences_and_wide_heads_compile():
    """What the fused kernels have no room for goes by blocks; nothing is refused."""
    from trnlab.compiler import compile
    from trnlab.graph.builder import GraphBuilder

    b = GraphBuilder("long")
    q, k, v, dout = (b.input(n, (1, 1, 8192, 128), "float32") for n in ("q", "k", "v", "dout"))
    out, lse = b.attention(q, k, v, causal=True)
    for i, value in enumerate((out, *b.attention_backward(dout, q, k, v, out, lse, causal=True))):
        b.output(value, f"o{i}")
    program = compile(b.build(), chips.get("trn2"), {"precision": "bf16"})
    assert len(program.calls) >= 2


@pytest.mark.parametrize("name", ["padding", "encoder", "decoder"])
def test_modules_evaluate_without_gradients(name):
    """In evaluation PyTorch calls one operator for a whole layer."""
    torch.manual_seed(4)
    torch._dynamo.reset()
    make, function = MODULES[name]
    module = make().eval()
    batch = (normal(2, 7, 16), normal(2, 7, 16, seed=3), torch.arange(7)[None] >= torch.tensor([[4], [7]]))
    batch = (*batch, torch.full((7, 7), -INF).triu(1))
    twin = copy.deepcopy(module).to("neuron")
    with torch.no_grad(), engine("trn1"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, of nested tensors
        expected = function(module, *batch)
        got = torch.compile(function, backend="neuron")(twin, *(x.to("neuron") for x in batch)).cpu()
    seen = ~batch[2] if name != "decoder" else torch.ones(2, 7, dtype=torch.bool)  # the CPU leaves padding out
    torch.testing.assert_close(got[seen], expected[seen], rtol=1e-4, atol=1e-5)
