# SPDX-License-Identifier: Apache-2.0
"""Each lowering against eager PyTorch on the CPU in fp32, with gradients, as the interpreter defines it and as the
simulated chip computes it: every element as near as PyTorch asks of two devices."""

import pytest
import torch
import torch.nn.functional as F
from helpers import TRN1, assert_same, check, through_graph

import trnlab.frontends.torch as neuron
from trnlab.errors import NumericsError, RunError
from trnlab.frontends.torch.lowerings import LOWERINGS
from trnlab.graph.flops import model_flops

pytestmark = pytest.mark.torch

SHAPES = ((5, 7), (1, 1), (2, 3, 130))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def positive(*shape):
    return normal(*shape).abs() + 0.1


def ids(*shape, high=6, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x.abs() + 0.1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5),
    "square": torch.square,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "powers": lambda x: x**2 + x**3 + (x.abs() + 0.1) ** 0.5 + (x.abs() + 0.1) ** -0.5 + (x.abs() + 0.1) ** 1.7,
    "power_of_number": lambda x: 0.9**x,
    "power_of_tensors": lambda x: (x.abs() + 0.1) ** x,
    "numbers": lambda x: 2 * x + 1 - x / 3 - (4 - x) + torch.add(x, x, alpha=0.5) - torch.sub(x, 1.0, alpha=2),
    "clamp": lambda x: (
        x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=-0.1) + x.clamp_min(0.2) + x.clamp_max(0.3)
    ),
    "where": lambda x: torch.where(x > 0, x, 2 * x) + torch.where(x < 0, 1.0, x),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, -2.0),
    "compare": lambda x: ((x > 0) & (x < 1) | (x == 0) ^ (x != 0.5)).float() + (x >= 0).float() * (x <= 1).float(),
    "logic": lambda x: torch.logical_and(x, x > 0).float() + torch.logical_not(x).float() + (~(x > 0)).float(),
    "nan_checks": lambda x: torch.isnan(x / 0 * 0).float() + torch.isinf(1 / (x * 0)).float(),
    "floor_division": lambda x: torch.div(x, 0.3, rounding_mode="floor") + torch.div(x, 0.3, rounding_mode="trunc"),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5) + torch.addcdiv(x, x, x.abs() + 1, value=-0.5),
    "casts": lambda x: x.half().float() + x.to(torch.float32) + x.to(torch.int32).float() + x.bool().float(),
    "sum": lambda x: (x.sum(), x.sum(-1), x.sum(0, keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1), x.mean(0, keepdim=True)),
    "extremes": lambda x: (x.amax(-1), x.amin(0), x.max(), x.min()),
    "prod": lambda x: x.detach().prod(),
    "flip": lambda x: x.flip(0) + x.flip(-1),
    "roll": lambda x: x.roll(3) + x.roll((1, -9), (0, -1)) + x.roll((3, 4), (1, 1)) + x.roll(0, 0),
    "norm": lambda x: (torch.linalg.vector_norm(x), x.norm(dim=-1), torch.linalg.vector_norm(x, 1), x.abs().max()),
    "any_all": lambda x: ((x > 2).any(), (x > -9).all(-1)),
    "cumsum": lambda x: (x.cumsum(-1), x.cumsum(0)),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: (x.softmax(-1), x.softmax(0)),
    "log_softmax": lambda x: (x.log_softmax(-1), x.log_softmax(0)),
    "transposes": lambda x: (x.transpose(0, -1), x.movedim(0, -1), x.mT),
    "views": lambda x: (x.reshape(-1), x.unsqueeze(1), x.unsqueeze(0).squeeze(0), x.flatten(), x.view(1, *x.shape)),
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "repeat": lambda x: x.repeat(*(2 for _ in x.shape)),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 0),
    "cat": lambda x: (torch.cat([x, 2 * x], -1), torch.stack([x, x], 1)),
    "split": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) + sum(t.sum() for t in x.split(2, 0)),
    "select": lambda x: (x[0], x[-1], x.unbind(0)[0]),
    "slices": lambda x: (x[:, :1], x[..., ::2]),
    "pad": lambda x: F.pad(x, (1, 2), value=0.5),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1)),
    "assignment": lambda x: _assigned(x),
    "factories": lambda x: x + torch.ones_like(x) + torch.full_like(x, 2.0) + torch.zeros(x.shape, device=x.device),
    "arange": lambda x: x + torch.arange(x.shape[-1], device=x.device) * torch.arange(1, 2, 0.5, device=x.device)[0],
    "captured_constant": lambda x: x * torch.tensor(3.0, device=x.device),
}


def _assigned(x):
    y = x.clone()
    y[..., 0] = 5.0
    y[0] += 1
    y.mul_(2)
    return y


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_one_tensor(name, shape):
    check(UNARY[name], [normal(*shape)])


VARIANCES = {"var": torch.var, "std": torch.std, "var_mean": lambda x: torch.var_mean(x, -1, correction=0)}


@pytest.mark.parametrize("name", VARIANCES)
def test_variances(name):
    check(VARIANCES[name], [normal(5, 7)])


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda x, y: x / (y.abs() + 0.5),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, torch.sigmoid(y)),
    "mse": F.mse_loss,
    "huber": F.smooth_l1_loss,
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
}


@pytest.mark.parametrize("shapes", [((5, 7), (5, 7)), ((2, 3, 4), (3, 1)), ((4,), ()), ((1,), (6, 1))], ids=str)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_two_tensors_broadcast(name, shapes):
    if name in ("mse", "huber", "bce") and shapes[0] != shapes[1]:
        pytest.skip("losses take equal shapes")
    check(BINARY[name], [normal(*shapes[0]), normal(*shapes[1], seed=3)])


PRODUCTS = {
    "mm": (torch.mm, (5, 7), (7, 3)),
    "mm_one": (torch.mm, (1, 1), (1, 1)),
    "bmm": (torch.bmm, (2, 5, 7), (2, 7, 3)),
    "matmul": (torch.matmul, (2, 3, 5, 7), (7, 4)),
    "batched": (torch.matmul, (2, 3, 5, 7), (2, 3, 7, 4)),
    "mv": (torch.mv, (5, 7), (7,)),
    "dot": (torch.dot, (7,), (7,)),
    "linear": (F.linear, (2, 5, 7), (3, 7)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (2, 5, 7), (2, 3, 7)),
    "outer": (torch.outer, (5,), (7,)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    function, x, y = PRODUCTS[name]
    check(function, [normal(*x), normal(*y, seed=1)])


def test_addmm_scales_and_broadcasts():
    def function(bias, x, y):
        return torch.addmm(bias, x, y, beta=0.5, alpha=2.0) + F.linear(x, y.t(), bias)

    check(function, [normal(3), normal(5, 7), normal(7, 3, seed=1)])


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (7,), w, b),
    "layer_norm_plain": lambda x, w, b: F.layer_norm(x, (7,)) * w + b,
    "layer_norm_two": lambda x, w, b: F.layer_norm(x, (5, 7)) * w + b,
    "rms_norm": lambda x, w, b: F.rms_norm(x, (7,), w) + b,
    "rms_norm_eps": lambda x, w, b: F.rms_norm(x, (7,), w, 1e-3) + b,
    "group_norm": lambda x, w, b: F.group_norm(x, 5) * w + b,
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisation(name):
    check(NORMS[name], [normal(3, 5, 7), normal(7, seed=1), normal(7, seed=2)])


LOSSES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.1},
    "ignore": {"ignore_index": 2},
}


@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy(name):
    target = ids(9)
    check(lambda x, t: F.cross_entropy(x, t, **LOSSES[name]), [normal(9, 6), target])


def test_cross_entropy_with_class_weights():
    check(lambda x, t, w: F.cross_entropy(x, t, w.detach()), [normal(9, 6), ids(9), positive(6)])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [2, -100])
def test_losses_of_ignored_rows_that_are_infinite(ignored, reduction):
    """What is ignored is left out, not multiplied by zero: neither it nor its gradient is NaN."""
    logp, target = normal(9, 6).log_softmax(-1), ids(9)
    target[:3] = ignored
    logp[0], logp[1], logp[4, 5] = -float("inf"), float("nan"), float("inf")
    target[4] = 1
    check(lambda x, t: F.nll_loss(x, t, ignore_index=ignored, reduction=reduction), [logp, target])
    weights = positive(6)
    check(
        lambda x, t: F.nll_loss(x, t, weights.to(x.device), ignore_index=ignored, reduction=reduction), [logp, target]
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [2, -100])
def test_losses_of_pixels(ignored, reduction):
    """Classes along the second of four dimensions, with and without weights; ignored pixels may be anything."""
    logp, target = normal(2, 6, 3, 5).log_softmax(1), ids(2, 3, 5)
    target[:, 0] = ignored
    logp[0, :, 0, 0], logp[0, :, 0, 1], logp[1, 5, 2, 2] = -float("inf"), float("nan"), float("inf")
    target[1, 2, 2] = 1
    weights = positive(6)
    for given in (None, weights):

        def loss(x, t, given=given):
            return F.nll_loss(x, t, given if given is None else given.to(x.device), None, ignored, None, reduction)

        check(loss, [logp, target])


SIGNED_ZEROS = {
    "1 / (x + 0)": lambda x: 1 / (x + 0.0),
    "1 / (0 - x)": lambda x: 1 / (0.0 - x),
    "1 / -(x - |x|)": lambda x: 1 / -(x - x.abs()),
    "x ** 0.5": lambda x: x**0.5,
    "x ** -0.5": lambda x: x**-0.5,
    "pow of tensors, 0.5": lambda x: torch.pow(x, torch.full_like(x, 0.5)),
    "pow of tensors, -0.5": lambda x: torch.pow(x, torch.full_like(x, -0.5)),
}


@pytest.mark.parametrize("name", SIGNED_ZEROS)
def test_simplifying_keeps_the_sign_of_zeros(name):
    inf = float("inf")
    check(SIGNED_ZEROS[name], [torch.tensor([-inf, -0.0, 4.0, float("nan"), -3.0, inf, 0.0])], gradients=False)


def test_gradients_of_an_embedding_that_are_not_finite():
    """Infinities and NaN reach the rows and columns that they belong to, and no others."""
    scale = torch.ones(9, 4)
    scale[0, 1], scale[3, 2], scale[4, 2], scale[5, 3] = (float(x) for x in ("inf", "inf", "-inf", "nan"))
    rows = torch.tensor([0, 5, 5, 2, 2, 3, 0, 1, 1])
    check(lambda w, i, s: F.embedding(i, w) * s.detach(), [normal(6, 4), rows, scale])
    check(lambda x, i, s: x.index_add(0, i, s.detach()), [normal(6, 4), rows, scale])
    check(lambda x, i, s: x.index_put((i,), s.detach(), accumulate=True), [normal(6, 4), rows, scale])
    check(lambda x, i, s: x.scatter_add(0, i[:, None].expand(9, 4), s.detach()), [normal(6, 4), rows, scale])


ROWS = {
    "gather": lambda x, i, y: x.gather(1, i.unsqueeze(-1).expand(-1, -1, x.shape[2])),
    "gather, repeated": lambda x, i, y: x.gather(1, i.unsqueeze(-1).repeat(1, 1, x.shape[2])),
    "gather, the index smaller": lambda x, i, y: x.gather(1, i[:2, :, None].expand(-1, -1, 33)),
    "gather, the first dimension": lambda x, i, y: x.gather(0, i.remainder(3).t()[:, :1, None].expand(-1, 1, 40)),
    "gather, later dimensions": lambda x, i, y: x.unflatten(2, (5, 8)).gather(
        1, i[..., None, None].expand(3, 7, 5, 8)
    ),
    "gather, which differs": lambda x, i, y: x.gather(1, i.unsqueeze(-1) + torch.arange(40, device=i.device) % 2),
    "scatter_add": lambda x, i, y: x.scatter_add(1, i.unsqueeze(-1).expand(-1, -1, 40), y),
    "scatter_add, the index smaller": lambda x, i, y: x.scatter_add(
        1, i[:2, :4, None].expand(-1, -1, 35), y.detach()
    ),
    "take_along_dim": lambda x, i, y: torch.take_along_dim(x, i.unsqueeze(-1), 1),
}


@pytest.mark.parametrize("name", ROWS)
def test_indices_that_are_the_same_along_rows(name):
    """As models pick tokens of each sequence, and their gradients: an index twice, and some not at all."""
    check(ROWS[name], [normal(3, 9, 40), ids(3, 7, high=8), normal(3, 7, 40, seed=4)])


def test_rows_of_an_index_are_picked_as_those_of_a_table():
    """No comparison of every index with every place is left."""
    for name in (
        "gather",
        "gather, repeated",
        "gather, the first dimension",
        "gather, later dimensions",
        "scatter_add",
    ):
        *_, graph = through_graph(ROWS[name], [normal(3, 9, 40), ids(3, 7, high=8), normal(3, 7, 40, seed=4)])
        assert max((op.result.type.size for op in graph.ops if op.name == "compare"), default=0) <= 3 * 7 * 40, name
        assert any(op.name in ("gather", "scatter") for op in graph.ops), name


def test_cross_entropy_of_wide_rows_and_ignored_targets():
    target = ids(9, high=300)
    target[3] = -100
    check(F.cross_entropy, [3 * normal(9, 300), target])


INDEXING = {
    "embedding": (F.embedding, lambda: [ids(2, 5), normal(6, 3)]),
    "embedding_padding": (lambda i, w: F.embedding(i, w, padding_idx=0), lambda: [ids(2, 5), normal(6, 3)]),
    "positions": (
        lambda x, w: x + F.embedding(torch.arange(5, device=x.device), w),
        lambda: [normal(2, 5, 3), normal(9, 3, seed=1)],
    ),
    "gather_last": (lambda x, i: x.gather(-1, i), lambda: [normal(4, 6), ids(4, 3)]),
    "gather_first": (lambda x, i: x.gather(0, i), lambda: [normal(6, 4), ids(2, 4)]),
    "scatter_value": (lambda x, i: x.scatter(-1, i, 7.0), lambda: [normal(4, 6), ids(4, 1)]),
    "scatter_source": (lambda x, i, s: x.scatter(-1, i, s), lambda: [normal(4, 6), ids(4, 1), normal(4, 1, seed=5)]),
    "scatter_add": (lambda x, i, s: x.scatter_add(-1, i, s), lambda: [normal(4, 6), ids(4, 3), normal(4, 3, seed=5)]),
    "rows": (lambda x, i: x[i], lambda: [normal(6, 4), ids(2, 3)]),
    "negative_rows": (lambda x, i: x[i - 6], lambda: [normal(6, 4), ids(5)]),
    "columns": (lambda x, i: x[:, i], lambda: [normal(2, 6, 4), ids(3)]),
    "index_select": (lambda x, i: x.index_select(1, i), lambda: [normal(2, 6, 4), ids(3)]),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), lambda: [normal(6, 4), ids(3), normal(3, 4, seed=5)]),
    "one_hot": (lambda x, i: x * F.one_hot(i, 6).float(), lambda: [normal(4, 6), ids(4)]),
    "two_indices": (lambda x, i, j: x[i, j], lambda: [normal(6, 5, 4), ids(3), ids(3, high=5)]),
    "two_indices_apart": (lambda x, i, j: x[i, :, j], lambda: [normal(6, 5, 4), ids(3), ids(3, high=4)]),
    "indices_that_broadcast": (
        lambda x, i, j: x[:, i - 5, j],
        lambda: [normal(2, 5, 4), ids(3, 1, high=5), ids(2, high=4)],
    ),
    "assigned_rows": (
        lambda x, i, v: x.index_put((i,), v),
        lambda: [normal(6, 4), torch.tensor([4, 0, -3]), normal(3, 4)],
    ),
    "assigned_pairs": (
        lambda x, i, j: x.index_put((i, j), x[0, 0] * 2),
        lambda: [normal(6, 4), ids(3), ids(3, high=4)],
    ),
    "added_pairs": (
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        lambda: [normal(6, 4), ids(5), ids(5, high=4), normal(5)],
    ),
    "masked_assignment": (lambda x: x.detach().index_put((x > 0,), x.detach().sum()), lambda: [normal(6, 4)]),
    "index_copy": (lambda x, i, v: x.index_copy(1, i, v), lambda: [normal(3, 5), torch.tensor([4, 1]), normal(3, 2)]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), lambda: [normal(6, 4), ids(2)]),
    "scatter_several": (
        lambda x, i, s: x.scatter(1, i, s),
        lambda: [normal(4, 6), torch.tensor([[0, 3], [5, 1]]), normal(2, 2)],
    ),
    "scatter_smaller": (
        lambda x, i, s: x.scatter_add(0, i, s),
        lambda: [normal(4, 6), ids(3, 2, high=4), normal(3, 2)],
    ),
    "scatter_amax": (
        lambda x, i, s: x.detach().scatter_reduce(1, i, s.detach(), "amax", include_self=False),
        lambda: [normal(4, 6), ids(4, 3), normal(4, 3)],
    ),
    "scatter_mean": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "mean"),
        lambda: [normal(6, 4), ids(5, 4), normal(5, 4)],
    ),
    "take": (lambda x, i: x.take(i - 12), lambda: [normal(3, 4), ids(2, 5, high=24)]),
    "put": (lambda x, i, v: x.put(i, v, accumulate=True), lambda: [normal(3, 4), ids(5, high=12), normal(5)]),
    "strided_view": (lambda x: x.as_strided((3, 4), (2, 1), 1), lambda: [normal(12)]),
    "windows": (lambda x: x.unfold(-1, 3, 2), lambda: [normal(2, 9)]),
    "strided_assignment": (lambda x: _strided_assignment(x), lambda: [normal(3, 8)]),
    "no_rows": (lambda x, i: (x[i], x.index_add(0, i, x[:0])), lambda: [normal(3, 4), ids(0)]),
    "0-d": (lambda x, i: (x.gather(0, i), x.index_select(0, i.reshape(1))), lambda: [normal(), torch.tensor(0)]),
}


def _strided_assignment(x):
    y = x.clone()
    y[:, 1::3] = 7.0
    return y * 2


OUT_OF_RANGE = {
    "embedding": (lambda i, w: F.embedding(i, w), lambda: [torch.tensor([0, 6]), normal(6, 3)]),
    "negative embedding": (lambda i, w: F.embedding(i, w), lambda: [torch.tensor([0, -1]), normal(6, 3)]),
    "gather": (lambda x, i: x.gather(-1, i), lambda: [normal(2, 6), torch.tensor([[0], [6]])]),
    "rows": (lambda x, i: x[i], lambda: [normal(6, 3), torch.tensor([0, -7])]),
    "computed": (lambda x, i: x[i.clamp(max=9) + 1], lambda: [normal(6, 3), torch.tensor([0, 5])]),
    "labels": (lambda x, t: F.cross_entropy(x, t), lambda: [normal(2, 6), torch.tensor([0, 6])]),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), lambda: [normal(3, 2), torch.tensor([[3, 0]])]),
    "pairs": (lambda x, i: x[i, i], lambda: [normal(3, 2), torch.tensor([2, 0])]),
}


@pytest.mark.parametrize("on", ["interpreter", TRN1])
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_is_an_error_with_its_line(name, on):
    """PyTorch raises IndexError (on the CPU); a program that took another row in silence would be wrong."""
    function, inputs = OUT_OF_RANGE[name]
    with pytest.raises((NumericsError, RunError), match=r"TRN213|row that does not exist") as caught:
        through_graph(function, inputs(), gradients=False, on=on)
    assert caught.value.where.file == __file__


@pytest.mark.parametrize("on", ["interpreter", TRN1])
def test_an_assertion_of_the_program_is_an_error_with_its_message(on):
    def positive(x):
        torch._assert_async((x > 0).all(), "all must be positive")
        return x * 2

    through_graph(positive, [torch.ones(3)], gradients=False, on=on)
    with pytest.raises(NumericsError, match=r"TRN228: .*all must be positive") as caught:
        through_graph(positive, [torch.tensor([1.0, -1.0, 2.0])], gradients=False, on=on)
    assert caught.value.where.file == __file__


def test_labels_that_are_ignored_may_lie_outside():
    check(F.cross_entropy, [normal(3, 6), torch.tensor([0, -100, 5])])


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    function, inputs = INDEXING[name]
    check(function, inputs())


def test_places_of_extremes():
    def function(x):
        return x.argmax(-1), x.argmin(0), x.argmax(), x.max(-1)[1], *x.min(0)

    check(function, [normal(5, 7)])


def test_integers_narrow_to_32_bits():
    graph = check(lambda i: i.clamp(0, 9) * 2 + 1, [ids(5)])
    assert {v.dtype.name for v in graph.values()} == {"int32"}


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.2},
    "grouped": {"is_causal": True, "enable_gqa": True},
    "mask": {"attn_mask": "bool"},
    "bias": {"attn_mask": "float"},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_stays_whole(name):
    options = dict(ATTENTION[name])
    heads = 2 if "enable_gqa" in options else 4
    inputs = [normal(2, 4, 5, 8), normal(2, heads, 5, 8, seed=1), normal(2, heads, 5, 8, seed=2)]
    mask = options.pop("attn_mask", None)

    def function(q, k, v):
        more = {}
        if mask is not None:
            keep = torch.ones(5, 5, dtype=torch.bool, device=q.device).tril(1)
            more = {"attn_mask": keep if mask == "bool" else keep.float()}
        return F.scaled_dot_product_attention(q, k, v, **options, **more)

    names = [op.name for op in check(function, inputs).ops]
    assert names.count("trn.attention") == names.count("trn.attention_backward") == 1


def test_multihead_attention_layer():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    weights = [p.detach() for p in layer.parameters()]

    def function(x, *weights):
        named = dict(zip([n for n, _ in layer.named_parameters()], weights))
        return torch.func.functional_call(layer, named, (x, x, x))[0]

    check(function, [normal(2, 5, 8), *weights])


LOW_PRECISION = {
    "add": lambda x: x + x,
    "scale": lambda x: x * 0.1,
    "softmax": lambda x: x.softmax(-1),
    "mean": lambda x: x.mean(-1),
    "layer_norm": lambda x: F.layer_norm(x, (33,)),
    "matmul": lambda x: x @ x.mT,
    "gelu": F.gelu,
    "sum": lambda x: x.sum(),
}


@pytest.mark.parametrize("name", LOW_PRECISION)
def test_bf16_rounds_once_per_operator(name):
    """bf16 keeps 8 bits: a rounding is off by at most 2^-9; PyTorch's may go the other way, which makes 2^-8."""
    x = normal(5, 33).bfloat16()
    expected = LOW_PRECISION[name](x)
    for on in ("interpreter", TRN1):
        (got,), _, _ = through_graph(LOW_PRECISION[name], [x], gradients=False, on=on)
        assert got.dtype == torch.bfloat16
        assert_same(got, expected, rtol=2**-8, atol=1e-5)


def test_dropout_keeps_the_expectation_and_its_mask_is_the_gradients():
    x = torch.ones(100, 100)
    (out,), (grad,), graph = through_graph(lambda x: F.dropout(x, 0.25, True), [x])
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.75) < 4 * (0.75 * 0.25 / x.numel()) ** 0.5
    assert torch.allclose(out[kept], torch.tensor(4 / 3))
    assert torch.equal(grad != 0, kept)
    assert [v.name for v in graph.inputs][-1] == "seed"


def test_random_operators_draw_from_independent_streams():
    (a, b), _, _ = through_graph(
        lambda x: (torch.rand_like(x), torch.rand_like(x)), [torch.ones(50)], gradients=False
    )
    assert not torch.equal(a, b)
    assert 0 <= float(a.min()) <= float(a.max()) < 1


def test_every_lowering_is_listed():
    assert len(neuron.operators()) == len(LOWERINGS) > 150
    assert "aten.add.Tensor" in neuron.operators()


@pytest.mark.parametrize("length", [64, 600])
def test_running_sums_are_no_products_of_the_model(length):
    """They are computed by products with a triangle of ones, backward too; MFU and limits count the model's alone."""
    graph = through_graph(lambda x, w: x.cumsum(-1) @ w, [normal(4, length), normal(length, 8)])[-1]
    assert model_flops(graph) == 3 * 2 * 4 * length * 8
