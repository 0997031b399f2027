# SPDX-License-Identifier: Apache-2.0
"""The device behaves as PyTorch users expect of a device: tensors, modules, autograd, optimizers, random numbers."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import worst_error
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.errors import UsageError

pytestmark = pytest.mark.torch


@pytest.fixture
def x():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to("neuron")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def test_device_is_known():
    assert torch.device("neuron").type == "neuron"
    assert torch.neuron.is_available()
    assert torch.accelerator.current_accelerator().type == "neuron"
    with pytest.raises(UsageError, match="neuron:3"):
        torch.neuron.set_device(3)


def test_copies_between_host_and_device(x):
    host = x.cpu()
    assert host.device.type == "cpu"
    assert torch.equal(host.to("neuron").cpu(), host)
    assert "neuron:0" in repr(x)
    with pytest.raises(TypeError, match="neuron"):
        x.numpy()


CREATIONS = {
    "ones": lambda **k: torch.ones(2, 3, **k),
    "full": lambda **k: torch.full((2,), 7, **k),
    "arange": lambda **k: torch.arange(5, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 5, **k),
    "tensor": lambda **k: torch.tensor([1.0, 2.0], **k),
    "eye": lambda **k: torch.eye(3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 2), **k).zero_(),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_creation(name):
    made = CREATIONS[name](device="neuron")
    assert made.device.type == "neuron"
    assert torch.equal(made.cpu(), CREATIONS[name]())
    assert made.stride() == CREATIONS[name]().stride()


OPERATIONS = {
    "add": lambda x: x + x,
    "matmul": lambda x: x @ x.t(),
    "reduce": lambda x: x.sum(-1),
    "index": lambda x: x[torch.tensor([0, 2], device=x.device)],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: (x > 0).nonzero(),
    "topk": lambda x: x.topk(3)[0],
    "cat": lambda x: torch.cat([x, x]),
    "in_place": lambda x: x.clone().add_(1).mul_(2),
    "slice_assign": lambda x: _assign(x.clone()),
    "through_a_view": lambda x: _zero_through_view(x.clone()),
    "out": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "resize": lambda x: x.clone().resize_(2, 4),
    "transposed": lambda x: x.t().contiguous(),
    "dtype_view": lambda x: x.view(torch.int32),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "complex": lambda x: torch.fft.rfft(x),
}


def _assign(x):
    x[0:2, 1] = 0.0
    return x


def _zero_through_view(x):
    x.view(-1)[3:9].zero_()
    return x


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_matches_the_cpu_bit_for_bit(name, x):
    """The host runs the same kernel on the same memory."""
    result = OPERATIONS[name](x)
    expected = OPERATIONS[name](x.cpu())
    assert result.device.type == "neuron"
    assert torch.equal(result.cpu(), expected)
    assert result.stride() == expected.stride()


def test_views_share_storage(x):
    for view in (x.view(-1), x.t(), x[1:], x.unsqueeze(0), x.detach()):
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_numpy_alias_is_the_same_memory(x):
    alias = neuron.to_numpy_alias(x)
    alias[1, 2] = 42.0
    assert x[1, 2].item() == 42.0
    assert alias.ctypes.data == x.data_ptr()
    half = torch.ones(3, dtype=torch.bfloat16, device="neuron")
    neuron.to_numpy_alias(half)[:] = 1.5
    assert half.cpu().tolist() == [1.5] * 3
    back = neuron.from_numpy_alias(np.arange(3, dtype=np.float32))
    assert back.device.type == "neuron"


def test_autograd_matches_the_cpu():
    model = mlp()
    reference, data, target = copy.deepcopy(model), torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    model.to("neuron")
    F.cross_entropy(model(data.to("neuron")), target.to("neuron")).backward()
    F.cross_entropy(reference(data), target).backward()
    for p, q in zip(model.parameters(), reference.parameters()):
        assert p.grad.device.type == "neuron"
        assert worst_error(p.grad, q.grad) <= 1e-6


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_optimizers_match_the_cpu(options):
    model = mlp()
    reference = copy.deepcopy(model)
    model.to("neuron")
    for m in (model, reference):
        optimizer = torch.optim.AdamW(m.parameters(), 1e-2, **options)
        device = next(m.parameters()).device
        m(torch.ones(2, 8, device=device)).square().sum().backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        optimizer.step()
    for p, q in zip(model.parameters(), reference.parameters()):
        assert worst_error(p, q) <= 1e-5


def test_moving_a_module_keeps_parameters_and_ties():
    model = nn.ModuleDict({"a": nn.Embedding(5, 3), "b": nn.Linear(3, 5, bias=False)})
    model["b"].weight = model["a"].weight
    weight = model["a"].weight
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    model.to("neuron")
    assert model["b"].weight is model["a"].weight is weight
    assert optimizer.param_groups[0]["params"][0] is weight
    assert weight.device.type == "neuron"
    assert isinstance(weight, nn.Parameter)
    model.cpu()
    assert weight.device.type == "cpu"


def test_a_module_is_moved_whose_parameters_others_hold():
    """A graph, a view, a wrapper for several ranks: on PyTorch's own devices a module moves all the same."""
    layer, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(layer.state_dict())
    graph, view, optimizer = layer(torch.ones(1, 3)), layer.weight.view(-1), torch.optim.SGD(layer.parameters(), 0.5)
    for place in ("neuron", "cpu", "neuron"):
        layer.to(place)
    for each, stepping in ((layer, optimizer), (twin, torch.optim.SGD(twin.parameters(), 0.5))):
        each(torch.ones(2, 3, device=each.bias.device)).square().sum().backward()
        stepping.step()
    assert graph.device.type == view.device.type == "cpu"
    assert worst_error(layer.weight, twin.weight) <= 1e-6


def test_sparse_parameters_are_moved_and_stay_the_same():
    module = nn.Module()
    module.weight = weight = nn.Parameter(torch.eye(3).to_sparse())
    weight.role = "sparse"
    for place in ("neuron", "cpu"):
        module.to(place)
        assert module.weight is weight
        assert (weight.device.type, weight.role) == (place, "sparse")


def _normed() -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():  # it is deprecated, and in use
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)), nn.Tanh())


def test_a_module_is_moved_that_keeps_what_was_computed_from_its_parameters():
    """The older `weight_norm` keeps the weight, whose graph holds the parameters; after a forward pass, too."""
    model, reference = _normed(), _normed()
    pairs = [(each, torch.optim.SGD(each.parameters(), 0.5)) for each in (model, reference)]
    model(torch.ones(2, 4))
    model.to("neuron")
    for each, optimizer in pairs:
        each(torch.ones(2, 4, device=each[0].bias.device)).square().sum().backward()
        optimizer.step()
    for p, q in zip(model.cpu().parameters(), reference.parameters()):
        assert worst_error(p, q) <= 1e-5


def test_lazy_modules_are_moved_before_they_know_their_sizes():
    results = []
    for where in ("cpu", "neuron"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to(where)
        model(torch.ones(2, 1, 4, 4, device=where))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.arange(32.0, device=where).view(2, 1, 4, 4)).square().sum().backward()
        optimizer.step()
        results.append([tensor.cpu() for tensor in model.state_dict().values()])
    for ours, theirs in zip(*results):
        assert worst_error(ours.float(), theirs.float()) <= 1e-5


def test_an_encoder_takes_padding_where_nobody_trains_it():
    """PyTorch's fast way would make the batch a nested tensor."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, False], [False, False, True]])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)[~padding]  # the usual way, since it is trained
        found = encoder.eval().to("neuron")(x.to("neuron"), src_key_padding_mask=padding.to("neuron")).cpu()[~padding]
    assert worst_error(found, expected) <= 1e-5


LAYERS = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), (2, 3, 8)),
    "embedding": (lambda: nn.Embedding(10, 4), None),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    reference = copy.deepcopy(layer)
    data = torch.randint(0, 10, (2, 3)) if shape is None else torch.randn(shape)
    layer.to("neuron")
    for m, x in ((layer, data.to("neuron")), (reference, data)):
        out = m(x, x, x) if name == "attention" else m(x)
        out = out[0] if isinstance(out, tuple) else out
        out.square().sum().backward()
    for p, q in zip(layer.parameters(), reference.parameters()):
        assert worst_error(p.grad, q.grad) <= 1e-5


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"mask": "bool"}, {"mask": "float"}],
    ids=str,
)
def test_attention_matches_the_cpu(options):
    torch.manual_seed(0)
    options = dict(options)
    mask = options.pop("mask", None)
    kv_heads = 2 if "enable_gqa" in options else 4
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 8)
    if options.get("is_causal"):
        k, v = k[:, :, :5], v[:, :, :5]
    results = []
    for device in ("neuron", "cpu"):
        leaves = [t.to(device).detach().requires_grad_() for t in (q, k, v)]
        if mask:
            keep = torch.ones(5, 7, dtype=torch.bool, device=device).tril(2)
            options["attn_mask"] = keep if mask == "bool" else keep.float()
        out = F.scaled_dot_product_attention(*leaves, **options)
        out.square().sum().backward()
        results.append([out, *(t.grad for t in leaves)])
    for a, b in zip(*results):
        assert worst_error(a, b) <= 1e-5


def test_random_numbers_are_reproducible():
    draws = []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append([torch.randn(3, device="neuron").cpu(), F.dropout(torch.ones(50, device="neuron"), 0.5).cpu()])
    assert all(torch.equal(a, b) for a, b in zip(*draws))
    with torch.random.fork_rng(device_type="neuron"):
        torch.randn(2, device="neuron")
    assert set(draws[0][1].tolist()) == {0.0, 2.0}
    assert torch.randperm(10, device="neuron").sum().item() == 45


def test_everyday_machinery(x):
    with torch.device("neuron"):
        assert nn.Linear(2, 2).weight.device.type == "neuron"
    assert copy.deepcopy(x).device.type == "neuron"
    assert torch.equal(copy.deepcopy(x).cpu(), x.cpu())
    model = mlp().to("neuron")
    assert torch.equal(copy.deepcopy(model)[0].weight.cpu(), model[0].weight.cpu())
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    stream = torch.neuron.current_stream()
    event = stream.record_event()
    event.synchronize()
    assert stream.query()
    assert event.elapsed_time(stream.record_event()) >= 0
    torch.neuron.synchronize()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4, 2)), batch_size=2)
    assert [tuple(b.to("neuron").shape) for (b,) in loader] == [(2, 2), (2, 2)]


def test_host_operators_are_counted_and_copies_are_not(x):
    neuron.reset_fallback_counts()
    y = x + x
    y.view(-1)[0].item()
    y.cpu()
    assert neuron.fallback_counts("setup") == {"aten::add": 1}
    assert neuron.fallback_counts() == {}
    neuron.reset_fallback_counts()
