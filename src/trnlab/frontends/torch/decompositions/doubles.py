# SPDX-License-Identifier: Apache-2.0
"""float64 that lasts for a moment: between a cast from a narrower float and a cast back to one.

The chip has no float64, and computing in float32 instead would lose digits without a word. Not so where what is made
of a narrower float is rounded back to one at once, and all that happens in between keeps the relative precision: a
product, a quotient or a root in float64 that is rounded to float32 is the one of float32 (S. Figueroa, When is double
rounding innocuous?, SIGNUM 1995), and two of them in a row are within two units in the last place. Scales of low
precision formats are computed so (torchao/float8/float8_utils.py, amax_to_scale).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

_aten = torch.ops.aten
_CASTS = (_aten._to_copy.default,)
_KEEP_PRECISION = {
    *(_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar, _aten.reciprocal.default),
    *(_aten.sqrt.default, _aten.abs.default, _aten.neg.default, _aten.maximum.default, _aten.minimum.default),
    *(_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default, _aten.view.default),
    *(_aten.unsqueeze.default, _aten.squeeze.dims, _aten.squeeze.dim, _aten.expand.default),
}
_MOST = 4  # operators in between


def narrow_moments(module: fx.GraphModule) -> None:
    """Make float32 of the float64 that lasts for a moment, in the graph and in what it says of its values."""
    for node in list(module.graph.nodes):
        if node.target in _CASTS and _is_double(node) and not _is_double(node.all_input_nodes[0]):
            region = _region(node)
            for part in region:
                _narrow(part)


def _region(start: fx.Node) -> Sequence[fx.Node]:
    """The float64 values that come of a cast; none when they last, are many, or may lose precision."""
    found, waiting = [start], [start]
    if not start.all_input_nodes[0].meta["val"].dtype.is_floating_point:
        return []
    while waiting:
        for user in waiting.pop().users:
            if user in found or not _is_double(user):
                if user.op == "output" or (user not in found and user.target not in _CASTS):
                    return []
                continue
            others = [n for n in user.all_input_nodes if _is_double(n) and n not in found]
            if user.target not in _KEEP_PRECISION or others:
                return []
            found.append(user)
            waiting.append(user)
    return found if len(found) <= _MOST + 1 else []


def _is_double(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _narrow(node: fx.Node) -> None:
    fake = node.meta["val"]
    with fake.fake_mode:
        node.meta["val"] = torch.empty_strided(fake.shape, fake.stride(), dtype=torch.float32, device=fake.device)
    if node.target in _CASTS:
        node.kwargs = {**node.kwargs, "dtype": torch.float32}
