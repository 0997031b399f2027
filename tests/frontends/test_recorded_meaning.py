# SPDX-License-Identifier: Apache-2.0
"""What recorded operators mean where memory is shared, formats give way, threads work at once, or something fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.recording import barriers
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


@pytest.fixture(autouse=True)
def engine():
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(neuron.InterpreterEngine()) as interpreter:
        yield interpreter
        recording.flush()


def numbers(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


REFUSED = {
    "shifted": lambda x: x[1:].copy_(x[:-1]),
    "shifted by an operator": lambda x: x[:-1].add_(x[1:]),
    "transposed": lambda x: x.add_(x.t()),
    "one of its own elements": lambda x: x.mul_(x[0, 0]),
    "into a part of what it reads": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "chosen from itself": lambda x: x.index_add_(0, torch.tensor([0, 1], device=x.device), x[:2]),
    "assigned by an index": lambda x: x.__setitem__(torch.tensor([0], device=x.device), x[0]),
    "repeated": lambda x: x[:1].expand(4, 4).add_(1),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_pytorch_refuses_to_write_is_refused_at_its_line(case):
    for device in ("cpu", "neuron"):
        x = numbers(4, 4).to(device) * 1
        with pytest.raises(RuntimeError, match="memory location"):
            case(x)
        torch.testing.assert_close(x.cpu(), numbers(4, 4))


SHARED = {
    "a column from another": lambda x: x[:, 0].add_(x[:, 1]),
    "rows onto rows": lambda x: x[:2].copy_(x[2:]),
    "twice in a list": lambda x: torch._foreach_add_([x, x], 1.0),
    "crossed in lists": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    "one of its elements everywhere": lambda x: x.__setitem__(slice(None), x[0, 1]),
    "onto itself": lambda x: x.add_(x).copy_(x),
    "sums into itself": lambda x: torch.cumsum(x, 0, out=x),
}


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_writes_beside_reads_of_one_memory_are_those_of_pytorch(case):
    def run(device):
        x = numbers(4, 4).to(device) * 1
        case(x)
        return x.cpu()

    assert torch.equal(run("neuron"), run("cpu"))


IN_PLACE = {
    "addmm_": lambda x: x.addmm_(x + 1, x + 2, beta=0.5),
    "addmm_, of a part": lambda x: x[1:3].addmm_(x[1:3, :2] + 1, x[:2] + 2),
    "addmv_": lambda x: x[0].addmv_(x + 1, x[1] + 2),
    "cumsum_": lambda x: x.cumsum_(1),
    "tril_": lambda x: x.tril_(),
    "scatter_": lambda x: x.scatter_(0, (x.long() % 2), x + 20),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 1], device=x.device), x[:2] + 20),
    "baddbmm_": lambda x: x.view(2, 2, 4).baddbmm_(x.view(2, 2, 4)[..., :2] + 1, x.view(2, 2, 4) + 1),
}


@pytest.mark.parametrize("case", IN_PLACE.values(), ids=IN_PLACE)
def test_operators_in_place_are_recorded_however_pytorch_spells_them(case):
    """`addmm_` arrives as `addmm` into the memory of its first tensor."""
    found = []
    for device in ("cpu", "neuron"):
        x = numbers(4, 4).to(device) * 1
        neuron.reset_fallback_counts()
        case(x)
        found.append(x.cpu())
    torch.testing.assert_close(found[1], found[0])
    assert neuron.fallback_counts() | neuron.fallback_counts("setup") == {}


def test_what_pytorch_may_not_make_over_itself_is_as_on_the_host():
    """`mm` has no form in place, and an operand that is not the first is read after the result is begun."""
    x = numbers(4, 4).to("neuron") * 1
    y = x.addmm_(x, x + 1)
    torch.testing.assert_close(y.cpu(), numbers(4, 4).addmm(numbers(4, 4), numbers(4, 4) + 1))


def test_a_double_of_the_host_makes_doubles_where_pytorch_does():
    three, half = torch.arange(3).to("neuron"), torch.tensor(0.5, dtype=torch.float64)
    assert (three * half).dtype is torch.float64
    assert (three.float().sum() * half).dtype is torch.float64
    assert (three.float() * half).dtype is torch.float32
    assert (three * half).tolist() == [0, 0.5, 1]


def test_the_default_format_of_floats_may_change():
    x = torch.arange(4).to("neuron")
    assert (x / 2).dtype is torch.float32
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert (x / 2).dtype is torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / 2).dtype is torch.float32


def test_an_array_over_memory_of_the_device_is_read_and_written_at_any_time():
    x = numbers(4).to("neuron")
    before = x * 2
    over = neuron.to_numpy_alias(x)
    between = x + 1
    over[...] = 7
    x.add_(1)
    assert over.tolist() == [8] * 4
    assert before.tolist() == [0, 2, 4, 6]
    assert between.tolist() == [1, 2, 3, 4]
    array = np.ones(3, np.float32)
    y = neuron.from_numpy_alias(array)
    y.mul_(5)
    del y
    assert array.tolist() == [5] * 3


def test_what_a_failed_operator_left_out_is_never_read():
    """As where PyTorch raises at once: what came before is done, what came after was not."""
    table, kept = numbers(4, 2).to("neuron"), numbers(2).to("neuron")
    before = kept * 2
    kept.add_(1)
    rows = F.embedding(torch.tensor([5]).to("neuron"), table)
    after = kept + 3
    kept.add_(10)
    with pytest.raises(IndexError):
        rows.cpu()
    assert before.tolist() == [0, 2]
    assert kept.tolist() == [1, 2]
    with pytest.raises(IndexError):
        rows.cpu()
    with pytest.raises(IndexError):
        after * 2
    del rows, after
    assert (kept * 3).tolist() == [3, 6]


def test_two_threads_record_at_once_and_read_what_they_wrote():
    wrong = []

    def work(seed):
        x = torch.full((8,), float(seed)).to("neuron")
        for k in range(30):
            y = (x * 2 + k) - x
            if y.tolist() != [seed + k] * 8:
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_whole_number_where_an_operator_has_a_tensor_is_no_reason_for_the_host():
    neuron.reset_fallback_counts()
    x = torch.arange(7).to("neuron")
    assert (x % 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert torch.floor_divide(x, 2).tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert neuron.fallback_counts() | neuron.fallback_counts("setup") == {}


def test_a_float_that_is_an_input_gives_way_as_a_number_does():
    """To a tensor without dimensions it is one, and would make it float32."""
    for k in (1.5, 2.5, 3.5):
        x = torch.tensor(3.0, dtype=torch.bfloat16).to("neuron")
        y = x * k
        y.add_(1)
        assert y.dtype is torch.bfloat16
        assert y.item() == torch.tensor(3.0, dtype=torch.bfloat16).mul(k).add(1).item()


def test_sessions_compute_their_own():
    x = numbers(3).to("neuron")
    y = x * 2
    with session.activate(session.Session(chips.target("trn2.3xlarge"), "bf16")):
        assert not barriers._recorder.nodes
    assert y.tolist() == [0, 2, 4]


def test_numbers_that_are_divided_by_may_change_their_size_and_sign(engine):
    x = numbers(3, 4) - 5
    for n in (3.0, 7.0, 0.25, -2.0, 0.0, 1e30, 5.0):
        y = x.to("neuron")
        got = [y / n, torch.div(y, n, rounding_mode="floor"), y.long() / n]
        got += torch._foreach_div([y, y + 1], [n, 3.0])
        y.div_(n)
        expected = [x / n, torch.div(x, n, rounding_mode="floor"), x.long() / n, x / n, (x + 1) / 3.0, x / n]
        torch.testing.assert_close([t.cpu() for t in (*got, y)], expected, rtol=2e-7, atol=0, equal_nan=True)


NORMS = {
    "batch": (lambda: torch.nn.BatchNorm1d(24), (64, 24)),
    "layer": (lambda: torch.nn.LayerNorm(24), (64, 24)),
    "instance": (lambda: torch.nn.InstanceNorm1d(24, affine=True), (16, 24, 20)),
}


@pytest.mark.parametrize("half", ["autocast", "bfloat16"])
@pytest.mark.parametrize(("norm", "shape"), NORMS.values(), ids=NORMS)
def test_statistics_of_norms_are_float32(norm, shape, half):
    """Where the mean is many deviations: rounded to bfloat16, it would be off by a tenth of a deviation, and so would
    what the gradients are computed from (2 to 3 % here). PyTorch's own shapes of the host say that it is rounded."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape) / 8 + 5, torch.randn(shape)

    def gradient(device, kind):
        layer = norm().to(device, kind if half == "bfloat16" else torch.promote_types(kind, torch.float32))
        given = x.to(torch.bfloat16).to(device, kind).requires_grad_()
        (layer(given).double() if device == "cpu" else layer(given).float()).mul(weight.to(device)).sum().backward()
        return given.grad.cpu().double()

    exact, found = gradient("cpu", torch.float64), gradient("neuron", torch.bfloat16)
    assert (found - exact).norm() < 0.005 * exact.norm()


def test_what_an_operator_writes_is_known_by_place():
    """x += x is met first; of what x + y writes, x is not one."""
    for y in (numbers(4), numbers(4) + 1):
        a = numbers(4).to("neuron")
        a.add_(a)
        x, z = numbers(4).to("neuron"), y.to("neuron")
        total = x + z
        assert total.tolist() == (numbers(4) + y).tolist()
        assert x.tolist() == numbers(4).tolist()
