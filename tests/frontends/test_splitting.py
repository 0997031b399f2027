# SPDX-License-Identifier: Apache-2.0
"""The table of PyTorch's decompositions is kept, and made anew when operators are registered."""

import pytest
import torch

from trnlab.frontends.torch.decompositions import split

pytestmark = pytest.mark.torch


def test_the_table_is_made_once_and_is_pytorchs(monkeypatch):
    first = split.pytorchs()
    assert first.keys() == split._made().keys()
    monkeypatch.setattr(split, "_made", pytest.fail)
    assert split.pytorchs() == first
    split.pytorchs().clear()  # the caller's own
    assert split.pytorchs() == first


def test_an_operator_that_is_registered_later_is_split():
    split.pytorchs()
    with torch.library._scoped_library("trnlab_of_a_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        operator = torch.ops.trnlab_of_a_test.twice.default
        assert operator in split.pytorchs()
        assert split.pytorchs().keys() == split._made().keys()
    assert split.pytorchs().keys() == split._made().keys()


def test_a_decomposition_that_is_registered_later_is_there(monkeypatch):
    table = torch._decomp.global_decomposition_table["post_autograd"]
    operator = next(op for op in split.pytorchs() if op in table)
    monkeypatch.delitem(table, operator)
    assert split.pytorchs().keys() == split._made().keys()
