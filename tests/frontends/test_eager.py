# SPDX-License-Identifier: Apache-2.0
"""Outside of compiled programs whatever PyTorch's CPU does works on the device, or is refused with a code."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import trnlab.frontends.torch as neuron
from trnlab.errors import UsageError
from trnlab.frontends.torch import recording

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def both(function, *inputs):
    """Results and gradients on the device and on the CPU."""
    found = []
    for device in ("neuron", "cpu"):
        torch.manual_seed(0)
        leaves = [x.detach().clone().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [x for x in leaves if x.requires_grad]
        total = sum(r.sum() for r in results if r.requires_grad)
        grads = torch.autograd.grad(total, wanted, allow_unused=True) if isinstance(total, torch.Tensor) else ()
        assert all(r.device.type == device for r in results)
        found.append([*results, *(g for g in grads if g is not None)])
    return zip(*found, strict=True)


def agree(function, *inputs):
    for got, expected in both(function, *inputs):
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


X = torch.linspace(-2, 3, 12).reshape(3, 4)
N = torch.arange(12).reshape(3, 4)


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.soft_margin_loss],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.filterwarnings("ignore:reduction")
def test_losses(loss, reduction):
    agree(lambda x, y: loss(x, y.detach(), reduction=reduction), X, X.flip(0).contiguous())


@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM, nn.GRU], ids=lambda c: c.__name__)
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_train(cell, bias):
    def run(x):
        torch.manual_seed(1)
        layer = cell(4, 5, num_layers=2, bias=bias, bidirectional=True).to(x.device)
        out, state = layer(x)
        grads = torch.autograd.grad(out.square().sum(), list(layer.parameters()), retain_graph=True)
        return out, *grads, *(state if isinstance(state, tuple) else (state,))

    for got, expected in both(run, torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_recurrent_layers_take_packed_sequences_and_run_without_gradients():
    def run(x):
        torch.manual_seed(1)
        layer = nn.LSTM(4, 5).to(x.device)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
        with torch.inference_mode():
            return nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0].clone()

    for got, expected in both(run, torch.randn(3, 2, 4)):
        torch.testing.assert_close(got.cpu(), expected)


SCALARS = {
    "remainder": lambda x: x % 2,
    "remainder_of_float": lambda x: x % 2.5,
    "remainder_in_place": lambda x: x.clone().remainder_(2),
    "of_a_number": lambda x: 5 % (x + 1),
    "bits": lambda x: x & 3 | 8,
    "shift": lambda x: 1 << x,
    "fmod": lambda x: torch.fmod(x.double(), 2),
    "xlogy": lambda x: torch.special.xlogy(2, x),
    "power": lambda x: x**2.5,
    "where": lambda x: torch.where(x > 1, 2.5, x),
}


@pytest.mark.parametrize("name", SCALARS)
def test_numbers_as_operands(name):
    agree(SCALARS[name], N)


EDGES = {
    "all": lambda x: x.all(),
    "all_rows": lambda x: (x > 0).all(-1),
    "variance_of_one": lambda x: x[:1, :1].var(),
    "empty_sum": lambda x: x[:0].sum(0),
    "empty_mean": lambda x: x[:0].mean(),
    "empty_map": lambda x: x.reshape(3, 1, 4)[:, :0].cos(),
    "empty_in_place": lambda x: x[:0].clone().add_(1),
    "empty_product": lambda x: x[:0].t() @ x[:0],
    "conjugate": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(6, 2)).conj().clone()),
    "negative_view": lambda x: torch.view_as_complex(x.reshape(6, 2)).conj().imag.clone(),
    "zero_gradient": lambda x: x.sgn() + x,
    "sort": lambda x: x.sort(-1, descending=True)[0],
    "unique": lambda x: x.detach().round().unique(),
    "cumulative": lambda x: x.cumsum(0).cumprod(1),
    "histogram": lambda x: torch.bincount(x.abs().long().flatten()),
    "svd": lambda x: torch.linalg.svdvals(x),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of degrees of freedom
        agree(EDGES[name], X)


def test_out_tensors_of_every_size():
    x = X.to("neuron")
    right, empty, large = (torch.ones(n, device="neuron").reshape(-1, 4) for n in (12, 0, 28))
    for out in (right, empty):
        kept = out.data_ptr()
        assert torch.add(x, 1, out=out) is out
        assert torch.equal(out.cpu(), X + 1)
        assert out.data_ptr() == kept or out is empty
    torch.add(x, 1, out=large.resize_(0))
    assert torch.equal(large.cpu(), X + 1)
    values, places = torch.empty(0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
    torch.max(x, 1, out=(values, places))
    assert torch.equal(places.cpu(), X.max(1)[1])
    narrow = torch.empty(3, 4, device="neuron").t()  # strides of its own stay
    torch.add(x.t(), 1, out=narrow)
    assert narrow.stride() == (1, 4)
    assert torch.equal(narrow.cpu(), X.t() + 1)


def test_resize_keeps_memory_where_it_is_large_enough():
    x = X.to("neuron")
    first = x.view(-1)
    x.resize_(2, 2)
    assert x.data_ptr() == first.data_ptr()
    assert x.cpu().tolist() == X.flatten()[:4].reshape(2, 2).tolist()
    x.resize_(4, 8)
    assert x.cpu().flatten()[:12].tolist() == X.flatten().tolist()


def test_memory_that_a_tensor_gave_up_stays_as_long_as_somebody_sees_it():
    x = torch.arange(1000.0).to("neuron")
    alias = neuron.to_numpy_alias(x)
    x.data = torch.zeros(3, device="neuron")
    for _ in range(50):
        torch.randn(1000)  # would take the memory
    assert alias.tolist() == list(range(1000))


REFUSED = {
    "another_device": ("TRN151", lambda: torch.empty(3, device="neuron:3")),
    "move": ("TRN151", lambda: X.to("neuron:3")),
    "select": ("TRN151", lambda: torch.neuron.set_device(3)),
    "select_generic": ("TRN151", lambda: torch.accelerator.set_device_index(3)),
    "generator": ("TRN151", lambda: torch.Generator("neuron:3")),
    "sparse": ("TRN150", lambda: torch.eye(4).to_sparse_bsr((2, 2)).to("neuron")),
    "quantized": ("TRN150", lambda: torch.quantize_per_tensor(X.to("neuron"), 0.1, 0, torch.qint8)),
    "growing_storage": ("TRN153", lambda: X.to("neuron").untyped_storage().resize_(1000)),
}


def _sparse_embedding(device):
    """Gradients and weights after two steps of a table whose gradients are sparse."""
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([[1, 2, 1], [5, 1, 0]], device=device)).square().sum().backward()
        optimizer.step()
    return table.weight.grad, table.weight.detach()


def test_gradients_of_a_table_are_sparse():
    (gradient, weights), (expected, wanted) = _sparse_embedding("neuron"), _sparse_embedding("cpu")
    assert gradient.is_sparse
    torch.testing.assert_close(gradient.to_dense().cpu(), expected.to_dense())
    torch.testing.assert_close(weights.cpu(), wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_codes(name):
    code, function = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        function()
    assert caught.value.code == code


def test_tensors_of_two_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(X.to("neuron"), X.t())
    assert torch.equal(X.to("neuron")[torch.tensor([2, 0])].cpu(), X[[2, 0]])  # indices may be on the CPU
    assert (X.to("neuron") * torch.tensor(2.0)).cpu().tolist() == (X * 2).tolist()  # and single numbers


def test_generators():
    draws = [torch.randn(3, generator=torch.Generator("neuron").manual_seed(5), device="neuron").cpu() for _ in "ab"]
    assert torch.equal(*draws)
    assert torch.equal(draws[0], torch.randn(3, generator=torch.Generator().manual_seed(5)))
    assert isinstance(torch.default_generator, torch.Generator)
    state = torch.neuron.get_rng_state_all()
    first = torch.rand(4, device="neuron").cpu()
    torch.neuron.set_rng_state_all(state)
    assert torch.equal(torch.rand(4, device="neuron").cpu(), first)
    assert torch.neuron.initial_seed() == torch.initial_seed()


def test_what_device_generic_code_asks():
    for owner in (torch.neuron, torch.accelerator):
        owner.empty_cache()
        owner.synchronize()
        owner.reset_peak_memory_stats()
        assert owner.memory_allocated() == owner.max_memory_allocated() == owner.memory_reserved()
    assert torch.neuron.mem_get_info() == torch.accelerator.get_memory_info()
    assert torch.neuron.get_device_properties(0).total_memory > 1 << 30
    X.to("neuron").record_stream(torch.neuron.current_stream())
    with torch.neuron.stream(torch.neuron.Stream()), torch.neuron.device(0):
        assert isinstance(torch.neuron.current_stream(), torch.Stream)


def test_events_of_scripts_for_any_accelerator():
    start, end = torch.Event(enable_timing=True), torch.Event("neuron", enable_timing=True)
    start.record()
    torch.neuron.current_stream().record_event(end).synchronize()
    assert start.query()
    assert isinstance(end, torch.Event)
    assert start.elapsed_time(end) >= 0
    assert torch.neuron.current_stream().record_event().query()


class OnDevice(Dataset):
    """Items that worker processes make with the operators of the device."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return (torch.full((2,), float(i), device="neuron") * 2).cpu()


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (1, "spawn")])
@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, where other tests have imported it
def test_loaders_pin_and_work_in_other_processes(workers, method):
    loader = DataLoader(OnDevice(), 2, pin_memory=True, num_workers=workers, multiprocessing_context=method)
    assert [b.to("neuron", non_blocking=True).cpu()[:, 0].tolist() for b in loader] == [[0.0, 2.0], [4.0, 6.0]]


def test_pinning_copies():
    x = torch.ones(3)
    pinned = x.pin_memory()
    pinned[0] = 2
    assert (x.tolist(), x.is_pinned()) == ([1, 1, 1], False)
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert pinned.pin_memory() is pinned
    (batch,) = next(iter(DataLoader(TensorDataset(x), 3, pin_memory=True)))
    assert batch.tolist() == [1, 1, 1]


def test_what_was_written_to_parameters_stays_with_them():
    outer = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2)))
    for parameter in outer.parameters():
        parameter.role = tuple(parameter.shape)
    for place in ("neuron", "cpu"):
        outer.to(place)
        assert all(p.role == tuple(p.shape) and p.device.type == place for p in outer.parameters())


def test_a_wrapper_around_tensors_moves_with_them():
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach().clone()))
    for place in ("neuron", "cpu"):
        layer.to(place)
        weight = layer.weight
        assert {weight.device.type, weight.a.device.type, weight.b.device.type, weight.detach().device.type} == {
            place
        }


@pytest.mark.parametrize("way", recording.choice.MODES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_batch_norms_in_16_bits_beside_averages_in_32(way, training, kind):
    """As FSDP's mixed precision makes them: CUDA computes in 32 bits, the host has no kernel."""
    results = []
    for place, weights in (("cpu", torch.float32), ("neuron", kind)):
        norm = nn.BatchNorm1d(5).train(training)
        norm.weight.data, norm.bias.data = (torch.arange(5.0) / 4).to(weights), torch.ones(5).to(weights)
        norm = norm.to(place)
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).to(kind)
        with recording.using(way):
            x = x.to(place).requires_grad_()
            y = norm(x)
            y.square().sum().backward()
        got = (y, x.grad, norm.weight.grad, norm.bias.grad)
        assert {each.dtype for each in got[:2]} == {kind}
        assert {each.dtype for each in got[2:]} == {weights}
        results.append(
            [*(each.detach().cpu().float() for each in got), norm.running_mean.cpu(), norm.running_var.cpu()]
        )
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() <= 4 * torch.finfo(kind).eps * theirs.abs().max()


def test_saving_loading_and_copying():
    model = nn.Linear(3, 2).to("neuron")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.weight.device.type == "neuron"
        assert torch.equal(twin.weight.cpu(), model.weight.cpu())
        assert twin.weight.data_ptr() != model.weight.data_ptr()
    for where, device in (
        (None, "neuron"),
        ("cpu", "cpu"),
        ("neuron", "neuron"),
        (torch.device("neuron:0"), "neuron"),
    ):
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded["weight"].device.type == device
        assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    file.seek(0)
    assert torch.load(file, map_location="neuron")["w"].device.type == "neuron"


def test_scaled_gradients_and_autocast():
    def train(x):
        torch.manual_seed(2)
        model = nn.Linear(4, 3).to(x.device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(x.device.type, init_scale=64.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = model(x.detach() * factor).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return model.weight.detach(), torch.tensor(scaler.get_scale(), device=x.device)

    for got, expected in both(train, X):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_counting_from_many_threads_loses_nothing():
    neuron.reset_fallback_counts()
    x = X.to("neuron")

    def work():
        for _ in range(200):
            x.add(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert neuron.fallback_counts("setup") == {"aten::add": 800}
    neuron.reset_fallback_counts()
