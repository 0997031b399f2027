# SPDX-License-Identifier: Apache-2.0
"""A reference of attention that is called for some queries at a time gives what it gives for all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "tools" / "conformance" / "references.py"
spec = importlib.util.spec_from_file_location("references", FILE)
assert spec is not None
references = importlib.util.module_from_spec(spec)
assert spec.loader is not None
spec.loader.exec_module(references)

BATCH, QUERIES, KEYS, D = 2, 640, 1300, 8


def attention(
    q,
    k,
    v,
    tp_q=True,
    tp_out=False,
    cache_softmax=False,
    cp_offset=None,
    global_cp_deg=None,
    cp_strided_q_slicing=False,
    bound_min=None,
    bound_max=None,
):
    """Causal attention whose queries stand at an offset, at each or each so-many-th position, with bounds of keys."""
    q = q if tp_q else q.transpose(1, 2)
    rows = torch.arange(q.shape[1]) * (global_cp_deg if cp_strided_q_slicing else 1)
    rows, columns = rows[:, None] + (0 if cp_offset is None else int(cp_offset)), torch.arange(k.shape[2])[None]
    seen = columns <= rows
    if bound_min is not None:
        seen &= (columns >= bound_min.reshape(-1, 1)) & (columns < bound_max.reshape(-1, 1))
    scores = (q @ k).masked_fill(~seen, -1e9)
    out = torch.softmax(scores, -1) @ v
    out = out.transpose(1, 2) if tp_out else out
    most = scores.amax(-1).reshape(len(q), -1, 128).transpose(1, 2)
    return (out, most) if cache_softmax else out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tp_q": False},
        {"tp_out": True, "cache_softmax": True},
        {"cp_offset": torch.tensor([37])},
        {"cp_offset": torch.tensor([1]), "global_cp_deg": 2, "cp_strided_q_slicing": True},
        {"bound_min": torch.arange(QUERIES) // 3, "bound_max": torch.arange(QUERIES) // 3 + 200},
    ],
)
def test_slices_of_queries_give_the_rows_of_the_whole(options, monkeypatch):
    monkeypatch.setattr(references, "ROWS", 256)  # the last slice is smaller
    torch.manual_seed(0)
    q, k, v = torch.randn(BATCH, QUERIES, D), torch.randn(BATCH, D, KEYS), torch.randn(BATCH, KEYS, D)
    q = q if options.get("tp_q", True) else q.transpose(1, 2)
    calls = []

    def counted(*arguments, **named):
        calls.append(1)
        return attention(*arguments, **named)

    counted.__signature__ = references.inspect.signature(attention)
    whole, sliced = attention(q, k, v, **options), references.in_slices(counted)(q, k, v, **options)
    assert len(calls) == 3
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (whole, sliced)), strict=True):
        torch.testing.assert_close(one, other)
