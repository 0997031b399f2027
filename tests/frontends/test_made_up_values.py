# SPDX-License-Identifier: Apache-2.0
"""What `trnlab check` makes up does no harm: operators keep their shapes, and Python gets numbers it can take."""

import math

import pytest
import torch
from torch.utils import _pytree as pytree

from tools.opdb.samples import operators
from trnlab import chips
from trnlab.frontends.torch.check import unmaterialized, values
from trnlab.frontends.torch.check.report import examine
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
VALUES_SAY = {  # how long results are, and what is legal at all
    "combinations",
    "masked_select",
    "nonzero",
    "argwhere",
    "cov",
    "nn.functional.gaussian_nll_loss",
    "sparse.sampled_addmm",
    "native_batch_norm",
    "_native_batch_norm_legit",
}
ONE_IN_FOUR = [op for op in operators() if torch.float32 in op.supported_dtypes("cpu")][::4]


def forms(result):
    return [(tuple(t.shape), t.dtype, t.device.type) for t in pytree.tree_leaves(result) if torch.is_tensor(t)]


def moved(sample, device):
    given = (sample.input, sample.args, sample.kwargs)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), given)


@pytest.fixture
def every_tensor_is_large(monkeypatch):
    monkeypatch.setattr(unmaterialized, "LARGE", 1)


@pytest.mark.parametrize("device", ["neuron", "cpu"])
def test_operators_without_values_end_as_those_with_values_do(device, every_tensor_is_large):
    tried, wrong = 0, []
    for op in ONE_IN_FOUR:
        if op.name in VALUES_SAY:
            continue
        for sample in list(zip(range(2), op.sample_inputs("cpu", torch.float32))):
            x, args, kwargs = moved(sample[1], device)
            try:
                expected = forms(op(x, *args, **kwargs))
            except Exception:
                continue
            x, args, kwargs = moved(sample[1], device)
            tried += 1
            try:
                with unmaterialized.Unwritten(lambda name: None, lambda op, args: None):
                    got = forms(op(x, *args, **kwargs))
            except Exception as error:
                got = f"{type(error).__name__}: {error}"
            if got != expected:
                wrong.append((op.name, expected, got))
    assert tried > 150
    assert wrong == []


def report(folder, source):
    path = folder / "script.py"
    path.write_text(HEAD + source)
    target = chips.target("trn1.2xlarge")
    return examine(Script(path), [target], Session(target))


HEAD = """
import math, torch
from torch.utils.data import DataLoader, TensorDataset
m = torch.nn.Linear(600, 700).to("neuron"); o = torch.optim.SGD(m.parameters(), 0.1)
x = torch.randn(170, 600).to("neuron"); y = torch.randint(700, (170,)).to("neuron")
X = torch.randn(2000, 100)
def loss_of(h, y): return torch.nn.functional.cross_entropy(h, y)
def step(loss): o.zero_grad(); loss.backward(); o.step()
"""
LEGAL = {
    "numbers": """
for _ in range(2):
    h = m(x); loss = loss_of(h, y); step(loss)
    10 * math.log10(1 / loss.item()); math.exp(loss.item()); f"{loss:.3f}"; int(loss); range(int(loss))
    1 / (h.argmax(1) == y).sum().item(); 1 / (h - h.mean()).abs().max().item(); 1 / h.std().item()
    n = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0); assert torch.isfinite(n) and n > 0
    assert all(torch.isfinite(p.grad).all() for p in m.parameters())
    assert not any(torch.isnan(p.grad).any() for p in m.parameters())
    torch.multinomial(h.softmax(-1)[:4], 1)
""",
    "a loop until the loss is small": """
loss = torch.tensor(9.)
while loss > 1e-3:
    loss = loss_of(m(x), y); step(loss)
""",
    "a scaler of gradients": """
s = torch.amp.GradScaler("neuron", init_scale=4.0)
for _ in range(2):
    o.zero_grad(); s.scale(loss_of(m(x), y)).backward(); s.unscale_(o); s.step(o); s.update()
""",
    "indices of integers": """
i = torch.randperm(170).to("neuron"); t = i[100:]
for _ in range(2):
    h = m(x); h[i].sum(); h[i, y]; h[:, y[:3]]; h[[1, 2]]; step(loss_of(h[t], y[t]))
""",
    "masks of the host": """
keep = torch.arange(2000) % 2 == 0
assert X[keep].shape == (1000, 100) and X[:, X[0] > 0].shape[0] == 2000
order = X.sum(1).argsort(); torch.arange(2000)[order]; torch.arange(90000)[torch.randn(90000).argsort()]
for _ in range(2): step(loss_of(m(x), y))
""",
    "pinned batches": """
assert X.pin_memory().shape == X.shape
for (b,) in DataLoader(TensorDataset(torch.randn(512, 600)), batch_size=256, num_workers=1, pin_memory=True):
    step(m(b.to("neuron", non_blocking=True)).sum())
""",
    "other forms in place": """
X.unsqueeze_(0); X.squeeze_(0); X.t_(); assert X.shape == (100, 2000); X.resize_(10, 10)
for _ in range(2): step(loss_of(m(x), y))
""",
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_scripts_are_followed_to_their_steps(name, tmp_path):
    found = report(tmp_path, LEGAL[name])
    assert [f for f in found.findings if f.severity == "error"] == []
    assert found.steps >= 2


def test_a_mask_on_the_device_is_named_once_a_line_and_the_walk_goes_on(tmp_path):
    source = "mask = y > 3\nfor _ in range(2):\n    h = m(x); step(loss_of(h[mask], y[mask]))\n"
    found = report(tmp_path, source)
    assert found.steps == 2
    (said,) = (f for f in found.findings if f.code == "TRN204")
    assert said.what.startswith("indexing with a boolean mask needs the values of a tensor: the shape of its result")
    assert said.severity == "warning"
    assert "is read back" in said.why
    assert "as if every element" not in said.why  # the script's own labels are known


WINDOWS = """
def mask(x):  # of attention, as Longformer's: large, and made of lengths alone
    lengths = torch.ones(2, 400, device="neuron")
    both = lengths.bool()[:, None, None, :] & torch.ones(400, 1, device="neuron").bool()
    return torch.where(both, 0.0, -1e9)[:, 0, 0, :]
"""


def test_which_way_a_model_goes_by_what_it_knows(tmp_path):
    source = WINDOWS + (
        "for _ in range(2):\n"
        "    h = mask(x); m.weight.shape\n"
        "    assert not (h > 0).any().item() and not (h < 0).any().item()\n"
        "    step(loss_of(m(x), y))\n"
    )
    found = report(tmp_path, source)
    assert [f for f in found.findings if f.severity == "error"] == []
    assert found.steps == 2


def test_what_a_known_mask_chooses_is_counted(tmp_path):
    source = (
        "m.weight\nkeep = torch.arange(170, device='neuron') % 2 == 0\n"
        "for _ in range(2):\n    h = m(x)[keep]; assert h.shape[0] == 85 and len(keep.nonzero()) == 85\n"
        "    step(loss_of(h, y[keep]))\n"
    )
    found = report(tmp_path, source)
    assert [f for f in found.findings if f.severity == "error"] == []
    assert found.steps == 2


@pytest.mark.parametrize("large", [False, True])
def test_an_unknown_mask_has_one_size_in_both_passes(large, tmp_path, monkeypatch):
    if large:
        monkeypatch.setattr(unmaterialized, "LARGE", 64)
        monkeypatch.setattr(values, "LARGE", 64)
    source = (
        "for _ in range(2):\n    h = m(x); mask = h.detach()[:, 0] > 0; g = torch.zeros_like(h)\n"
        "    some = h[mask]; assert len(some) == 170 == len(mask.nonzero())\n"
        "    g[mask] = some * 2; at = mask.nonzero(as_tuple=True); g[at] = some\n"
        "    other = h[:3]; g[h.detach()[:, 1] > 0] = other\n"
        "    step(loss_of(g, y))\n"
    )
    found = report(tmp_path, source)
    assert [f for f in found.findings if f.severity == "error"] == []
    assert found.steps == 2
    assert any("as if every element was chosen" in f.why for f in found.findings if f.code == "TRN204")


def test_an_error_behind_a_made_up_number_says_that_it_was_made_up(tmp_path):
    found = report(tmp_path, "a = m(x).mean().item()\nb = {0.25: 1}[a]\n")
    (error,) = found.findings
    assert (error.code, error.place.line) == ("TRN259", HEAD.count("\n") + 2)
    assert f"made up here: 1.0 at {tmp_path}/script.py:{HEAD.count(chr(10)) + 1}" in error.why
    assert "trnlab run` first" not in error.do


def test_an_error_without_one_does_not(tmp_path):
    (error,) = report(tmp_path, "torch.ones(3).sum().item()\n{}['lr']\n").findings
    assert error.code == "TRN259"
    assert "made up here" not in error.why
    assert "no number that is made up" in error.do


def test_numbers_in_place_of_unknown_ones_are_finite_and_positive(every_tensor_is_large):
    with unmaterialized.Unwritten(lambda name: None, lambda op, args: None):
        for kind in (torch.float32, torch.bfloat16, torch.float64):
            number = torch.zeros(3, dtype=kind, device="neuron").sum().log().item()
            assert math.isfinite(number)
            assert number > 0
        assert torch.zeros(3, dtype=torch.int64, device="neuron").sum().item() == 1


OWN_INDICES = """
class Chooses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(90, 600), torch.nn.Linear(600, 90)
    def forward(self, ids):
        ids[:, [0, -1]].sum()
        blocks = torch.tensor([[0, 1, 2], [2, 1, 0]], device=ids.device)  # which blocks attend to which
        return self.out(self.table(ids)[:, blocks.view(-1)] * 1.0)
m = Chooses().to("neuron"); o = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(2):
    ids = torch.randint(90, (5, 16)).to("neuron"); step(m(ids).sum())
"""


def test_a_models_own_indices_are_no_batch(tmp_path):
    found = report(tmp_path, OWN_INDICES)
    assert (found.per_step, found.counted) == (80, "tokens")
