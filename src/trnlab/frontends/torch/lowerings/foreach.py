# SPDX-License-Identifier: Apache-2.0
"""Operators over lists of tensors, which optimizers use: each element through the lowering of the plain operator."""

from __future__ import annotations

from typing import Any

import torch

from trnlab.frontends.torch.device.dispatch import operator
from trnlab.frontends.torch.lowerings.registry import LOWERINGS, LoweringSite, lowers

# Operator over lists -> operator over tensors; the arguments that are lists go in element by element.
_ELEMENTS = {
    "add.Scalar": "add.Scalar",
    "add.List": "add.Tensor",
    "add.ScalarList": "add.Scalar",
    "add.Tensor": "add.Tensor",
    "sub.Scalar": "sub.Scalar",
    "sub.List": "sub.Tensor",
    "sub.ScalarList": "sub.Scalar",
    "mul.Scalar": "mul.Scalar",
    "mul.List": "mul.Tensor",
    "mul.ScalarList": "mul.Scalar",
    "mul.Tensor": "mul.Tensor",
    "div.Scalar": "div.Scalar",
    "div.List": "div.Tensor",
    "div.ScalarList": "div.Scalar",
    "div.Tensor": "div.Tensor",
    "addcmul.Scalar": "addcmul.default",
    "addcmul.ScalarList": "addcmul.default",
    "addcdiv.Scalar": "addcdiv.default",
    "addcdiv.ScalarList": "addcdiv.default",
    "lerp.Scalar": "lerp.Scalar",
    "lerp.List": "lerp.Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.List": "pow.Tensor_Tensor",
    "pow.ScalarAndTensor": "pow.Scalar",
    "maximum.List": "maximum.default",
    "maximum.Scalar": "clamp_min.default",
    "minimum.Scalar": "clamp_max.default",
    "minimum.List": "minimum.default",
    "clamp_min.Scalar": "clamp_min.default",
    "copy.default": "copy.default",
    "clamp_max.Scalar": "clamp_max.default",
    "norm.Scalar": "linalg_vector_norm.default",
    "sqrt.default": "sqrt.default",
    "neg.default": "neg.default",
    "abs.default": "abs.default",
    "reciprocal.default": "reciprocal.default",
    "exp.default": "exp.default",
    "sign.default": "sign.default",
    "rsqrt.default": "rsqrt.default",
}


def _per_element(element: Any) -> Any:
    def run(site, *args, **kwargs):
        def one(i: int) -> Any:
            here = LoweringSite(site.b, site.node, [site.types[i]], site.random, site.watch)
            pick = lambda a: a[i] if isinstance(a, (list, tuple)) else a  # noqa: E731
            return LOWERINGS[element](here, *map(pick, args), **{k: pick(a) for k, a in kwargs.items()})

        return tuple(one(i) for i in range(len(site.types)))

    return run


for _list_name, _name in _ELEMENTS.items():
    _packet, _, _overload = _list_name.partition(".")
    if _overload in getattr(torch.ops.aten, f"_foreach_{_packet}").overloads():
        lowers(f"_foreach_{_list_name}")(_per_element(operator(_name)))
