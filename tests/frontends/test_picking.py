# SPDX-License-Identifier: Apache-2.0
"""Sorting, the best k, bags of embeddings, uneven windows, weight norm and grouped products against eager PyTorch on
the CPU, with gradients, on the interpreter and on the simulated chip."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, engine, engines, through_graph

from trnlab import chips
from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import recording
from trnlab.graph.flops import model_flops
from trnlab.runtime import session

pytestmark = pytest.mark.torch


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(*shape, high, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


SPECIAL = torch.tensor([[1.0, torch.nan, -torch.inf, 2.0, torch.inf, torch.nan], [torch.inf, -torch.inf] + [0.5] * 4])

# -- sorting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sort_gives_values_and_places(dim, descending):
    check(lambda x: torch.sort(x, dim, descending), [normal(3, 9, 5)])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "x", [SPECIAL, integers(3, 17, high=4), integers(2, 9, high=2).bool()], ids=["nan", "int", "bool"]
)
def test_equal_elements_keep_their_order_and_nan_is_the_largest(x, descending):
    check(lambda x: torch.sort(x, stable=True, descending=descending), [x], gradients=False)


def test_sorts_derived_from_it():
    check(lambda x: (torch.argsort(x, 0), torch.msort(x)), [normal(6, 4)])
    check(lambda x: torch.kthvalue(x, 3, 0, True), [normal(6, 4)])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("k", "size"), [(1, 4), (2, 8), (8, 60), (8, 8), (20, 30)])
def test_topk(k, size, largest):
    """By search (at most eight) and by sort; all that there are, too."""
    check(lambda x: torch.topk(x, k, -1, largest), [normal(5, size)])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [5, 6])
def test_topk_of_infinities_and_nan(k, largest):
    """Five are searched for, all six are sorted. Of equal elements PyTorch promises no order: values only."""
    check(lambda x: torch.topk(x, k, 1, largest)[0], [SPECIAL], gradients=False)


def test_topk_of_other_formats_and_dimensions():
    check(lambda x: torch.topk(x, 3, 0), [normal(7, 2, 3).bfloat16()])
    check(lambda x: torch.topk(x, 2, 0, False), [torch.tensor([3, -2, 2**31 - 1, -(2**31)])], gradients=False)


def test_routing_of_experts_with_gradients():
    """As mixtures of experts route: best two of a softmax, weights that sum to one."""

    def routed(x):
        weights, chosen = torch.topk(x.softmax(-1), 2, -1)
        return weights / weights.sum(-1, keepdim=True), F.one_hot(chosen, 8).sum(1)

    check(routed, [normal(12, 8)])


def test_a_sort_of_too_many_is_refused_with_a_way_out():
    with pytest.raises(UnsupportedOpError, match="ask for at most 8 of them with topk") as caught:
        through_graph(torch.sort, [torch.zeros(1, 2**14)], gradients=False)
    assert caught.value.code == "TRN201"


# -- bags -----------------------------------------------------------------------------------------------------------

IDS, OFFSETS = integers(11, high=6), torch.tensor([0, 4, 4, 9])  # the second bag is empty


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bags(mode, padding):
    check(
        lambda t: F.embedding_bag(IDS.to(t.device), t, OFFSETS.to(t.device), mode=mode, padding_idx=padding),
        [normal(6, 5)],
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_of_one_size(mode):
    check(lambda t, ids: F.embedding_bag(ids, t, mode=mode), [normal(6, 5), integers(4, 3, high=6)])


def test_embedding_bags_with_weights_and_a_last_offset():
    def bags(table, weights, ids, offsets):
        return F.embedding_bag(
            ids, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True, padding_idx=1
        )

    check(bags, [normal(6, 5), normal(11, seed=1), IDS, torch.tensor([0, 4, 4, 9, 11])])


def test_rows_outside_of_the_table_of_a_bag_are_found():
    from trnlab.errors import TrnlabError

    for name in ("interpreter", "trn1"):
        with pytest.raises(TrnlabError), engine(name):
            through_graph(lambda t, ids: F.embedding_bag(ids, t), [normal(6, 5), torch.tensor([[0, 6]])], False, name)


# -- others ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_places_of_triangles(offset):
    def picked(x):
        low, high = torch.tril_indices(5, 7, offset), torch.triu_indices(5, 7, offset)
        return x[low[0], low[1]], x[high[0], high[1]]

    check(picked, [normal(5, 7)])


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    shape = [1, 1, 1]
    shape[dim] = (6, 4, 3)[dim]
    check(lambda v, g: torch._weight_norm(v, g, dim), [normal(6, 4, 3), normal(*shape, seed=1)])


@pytest.mark.parametrize(("size", "places"), [((7, 5), (3, 2)), ((5, 4), (7, 3)), ((6, 4), (3, 2))])
def test_adaptive_max_pooling_with_windows_that_overlap(size, places):
    check(lambda x: F.adaptive_max_pool2d(x, places, return_indices=True), [normal(2, 3, *size)])


def test_adaptive_max_pooling_in_three_dimensions_and_of_nan():
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), [normal(2, 1, 5, 4, 3)])
    x = normal(1, 1, 5, 5)
    x[0, 0, 2, 2] = torch.nan
    check(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), [x], gradients=False)


def test_integers_that_are_few_are_counted():
    """As the experts that tokens go to: their order, the order back, and what is gathered there and back."""

    def there_and_back(x, y):
        kinds = x.topk(2, -1)[1].reshape(-1)
        values, order = torch.sort(kinds, stable=True)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        taken = y[order // 2] * 2
        return values, order, back, taken[back], *torch.sort(kinds, stable=True, descending=True)

    x, y = normal(600, 9), normal(600, 5)
    graph = check(there_and_back, [x, y])
    assert all(value.type.size < 1200 * 1200 for op in graph.ops for value in op.results)


def test_minus_zero_that_is_added_by_number_is_plus_zero():
    def added(x, y):
        order = torch.sort(x.topk(1, -1)[1].reshape(-1), stable=True)[1]
        return torch.zeros_like(y).index_put((order,), y, accumulate=True)

    y = torch.full((1100, 2), -0.0)
    for on in engines():
        (got,), *_ = through_graph(added, [normal(1100, 4), y], gradients=False, on=on)
        assert not torch.signbit(got).any()


def test_grouped_products_of_rows_columns_and_terms():
    """The groups have different sizes, one none; rows behind the last group are compared where there are none."""
    ends = torch.tensor([3, 3, 8, 12], dtype=torch.int32)

    def three(x, w, offs):
        rows = F.grouped_mm(x, w, offs=offs)
        columns = F.grouped_mm(w, x.mT, offs=offs)
        terms = F.grouped_mm(x.mT, x * 2, offs=offs)
        return rows, columns, terms, F.grouped_mm(w, w)

    check(three, [normal(12, 8), normal(4, 8, 8, seed=1), ends])


def test_of_grouped_products_the_model_asks_for_those_of_each_group():
    """They are computed of all rows for each group; MFU and limits count each row once."""
    ends = torch.tensor([3, 3, 8, 12], dtype=torch.int32)

    def rows(x, w, offs):
        return F.grouped_mm(x, w, offs=offs)

    graph = through_graph(rows, [normal(12, 8), normal(4, 8, 16, seed=1), ends])[-1]
    assert model_flops(graph) == 3 * 2 * 12 * 8 * 16  # and for both gradients


def test_grouped_products_hide_what_belongs_to_other_groups():
    """A weight that is infinite spoils the rows of its own group only."""
    w = torch.ones(2, 4, 4)
    w[1] = torch.inf
    ends = torch.tensor([2, 3], dtype=torch.int32)
    check(lambda x, w: F.grouped_mm(x, w, offs=ends.to(x.device)), [torch.ones(3, 4), w], gradients=False)


@pytest.mark.parametrize("ends", [(0, 3), (-1, 1), (0, 0)])
def test_histograms(ends):
    x = torch.cat([normal(20), torch.tensor([0.0, 1.0, 3.0, -1.0])])
    check(lambda x: torch.histc(x, 4, *ends), [x], gradients=False)


def test_histograms_of_equal_elements_and_nan():
    check(lambda x: torch.histc(x, 5), [torch.full((7,), 2.0)], gradients=False)
    check(lambda x: torch.histc(x, 3, 0, 3), [torch.tensor([torch.nan, 1.0, torch.inf, 3.0])], gradients=False)


def test_tokens_of_experts_are_counted():
    """Integers, for which the CPU has no form: what the floats would give."""
    chosen = integers(40, high=6)
    (got,), _, _ = through_graph(lambda x: torch.histc(x.int(), 6, 0, 5), [chosen], gradients=False, on="trn1")
    assert torch.equal(got, torch.bincount(chosen, minlength=6).int())


@pytest.fixture
def recorded():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")), recording.using("steps"):
        yield
        recording.flush()


@pytest.mark.parametrize("ends", [(0, 8), (0, 0), (2, 5), (-3, 3)])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_integers_on_the_device_are_counted_as_the_floats_they_are(recorded, kind, ends):
    x = integers(40, high=8).to(kind)
    got = torch.histc(x.to("neuron"), 5, *ends)
    assert got.dtype == kind
    assert torch.equal(got.cpu().float(), torch.histc(x.float(), 5, *ends))


def test_a_histogram_of_no_parts_or_with_ends_the_wrong_way_round_is_refused_in_pytorchs_words(recorded):
    x = integers(4, high=3).to("neuron")
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(x, 0)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(x, 3, 2, 1)
