# SPDX-License-Identifier: Apache-2.0
"""Whether results agree, element by element, with the precision that PyTorch asks for.

The tolerances are those of `torch.testing.assert_close` for the dtype
(https://docs.pytorch.org/docs/stable/testing.html: float32 1.3e-6 relative and 1e-5 absolute, bfloat16 1.6e-2,
float16 1e-3, integers and bools equal). Where the database itself states a wider one for a test that compares an
operator's values with a reference (a `toleranceOverride`), that one holds.

An element may also agree with the exact value: the same operator on float64 inputs. PyTorch's own tests of its
references accept a result that is no farther from the float64 one than the CPU's is (`test_python_ref` in
test/test_ops.py); here the same is asked of every element. Where an element is ill-conditioned, its distance may be
what one unit in the last place of the inputs makes of it: then it is the exact result of inputs that the format
cannot tell from those given (a small backward error).

Both zeros are different numbers, one over which is not the same: a result of -0.0 for 0.0 is wrong where PyTorch
gives the same zero in float64, too, except of operators whose zeros IEEE 754 and PyTorch's own loops leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing._comparison import default_tolerances

# Tests of PyTorch that compare values of an operator with those of another device or of a reference.
_COMPARING = (
    "test_compare_cpu",
    "test_python_ref",
    "test_reference_numerics",
    "test_noncontiguous_samples",
    "test_out",
    "test_variant_consistency",
    "test_numpy_ref",
    "test_reference_eager",
    "test_contiguous",
    "test_comprehensive",
    "test_output_match",
    "test_output_grad_match",
    "test_broadcasting",
)


# Operators that choose between both zeros, which are equal; that add products of zeros in an order of their own; and
# dropout, which PyTorch's CPU makes by a product with zero and we by a choice.
_OPEN_ZEROS = frozenset(
    (
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "max",
        "min",
        "amax",
        "amin",
        "aminmax",
        "clamp",
        "clamp_min",
        "clamp_max",
        "cummax",
        "cummin",
        "scatter_reduce",
        "nn.functional.relu",
        "nn.functional.relu6",
        "nn.functional.hardtanh",
        "nn.functional.max_pool1d",
        "nn.functional.max_pool2d",
        "nn.functional.max_pool3d",
        "grid_sampler_2d",
        "nn.functional.grid_sample",
        "native_dropout_backward",
    )
)


def has_signs(name: str) -> bool:
    """Whether the operator of that name says which zero it gives."""
    return name not in _OPEN_ZEROS


def tolerances(op: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Relative and absolute tolerance that the database states for an operator in a dtype; zero where it does not."""
    rtol, atol = 0.0, 0.0
    for decorator in op.decorators:
        test = getattr(decorator, "test_name", None)
        if decorator.__class__.__name__ != "DecorateInfo" or test is None or not str(test).startswith(_COMPARING):
            continue
        if decorator.device_type not in (None, "cpu", "cuda"):
            continue
        for override in decorator.decorators:
            stated = getattr(override, "d", {}).get(dtype)
            if stated is not None and hasattr(stated, "atol"):
                rtol, atol = max(rtol, stated.rtol), max(atol, stated.atol)
    return rtol, atol


def difference(got: Any, expected: Any, exact: Any, tolerance: tuple[float, float], signs: bool = True) -> str | None:
    """What is wrong with one result, in words, or None. `exact`: None, or `worker.Expected.exact` of the result.
    signs: whether the operator says which zero it gives."""
    got, expected, exact = dense(got), dense(expected), dense(exact)
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        same = isinstance(got, Tensor) == isinstance(expected, Tensor) and (got == expected or got != got)
        return None if same else f"got {got!r} for {expected!r}"
    if got.shape != expected.shape:
        return f"shape {list(got.shape)} for {list(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"dtype {got.dtype} for {expected.dtype}"
    got, expected, exact = in_parts(got), in_parts(expected), _parts_of_exact(exact)
    usual = default_tolerances(expected.dtype)
    tolerance = max(usual[0], tolerance[0]), max(usual[1], tolerance[1])
    bad, other = _disagreeing(got, expected, tolerance), _other_zero(got, expected, exact) if signs else None
    if other is not None and other.any():
        return _worst(got, expected, other)
    if not bad.any():
        return None
    precise = exact() if callable(exact) else ()
    if precise and precise[0].shape == got.shape and got.dtype.is_floating_point:
        bad &= _farther(got, expected, precise[0], tolerance)
        if bad.any():
            bad &= _beyond_conditioning(got, precise, tolerance)
        if not bad.any():
            return None
    return _worst(got, expected, bad)


def dense(x: Any) -> Any:
    """A sparse result with all its elements; anything else as it is."""
    return x.to_dense() if isinstance(x, Tensor) and x.layout is not torch.strided else x


def in_parts(x: Any) -> Any:
    """Complex numbers as pairs of their parts, each of which is judged; anything else as it is."""
    return torch.view_as_real(x.resolve_conj()) if isinstance(x, Tensor) and x.is_complex() else x


def _parts_of_exact(exact: Any) -> Any:
    return (lambda: [in_parts(x) for x in exact()]) if callable(exact) else exact


def _disagreeing(got: Tensor, expected: Tensor, tolerance: tuple[float, float]) -> Tensor:
    if not expected.dtype.is_floating_point:
        return got != expected
    return ~torch.isclose(got.double(), expected.double(), rtol=tolerance[0], atol=tolerance[1], equal_nan=True)


def _other_zero(got: Tensor, expected: Tensor, exact: Any) -> Tensor | None:
    """Where a zero has another sign than PyTorch's, which is the same in float64; None where none has."""
    if not expected.dtype.is_floating_point:
        return None
    other = (got == 0) & (expected == 0) & (got.signbit() != expected.signbit())
    if not other.any():
        return None
    precise = exact() if callable(exact) else ()
    if precise and precise[0].shape == got.shape:
        other &= precise[0].signbit() == expected.signbit()
    return other


def _farther(got: Tensor, expected: Tensor, precise: Tensor, tolerance: tuple[float, float]) -> Tensor:
    """Whether a result is farther from the exact value than the tolerance, and than the CPU's result."""
    exact = precise.double()
    near = torch.isclose(got.double(), exact, rtol=tolerance[0], atol=tolerance[1], equal_nan=True)
    rounded = exact.to(got.dtype).double()
    near |= got.double() == rounded
    nearer = (got.double() - exact).abs() <= (expected.double() - exact).abs()
    return ~(near | nearer)


def _beyond_conditioning(got: Tensor, precise: Sequence[Tensor], tolerance: tuple[float, float]) -> Tensor:
    """Whether a result is farther from the exact value than results of neighbouring inputs are; those follow in
    `precise`."""
    exact = precise[0].double()
    spread = torch.zeros_like(exact)
    for other in precise[1:]:
        spread = torch.maximum(spread, (other.double() - exact).abs().nan_to_num(0.0, 0.0, 0.0))
    allowed = spread + tolerance[1] + tolerance[0] * exact.abs()
    return ~((got.double() - exact).abs() <= allowed)


def _worst(got: Tensor, expected: Tensor, bad: Tensor) -> str:
    places = bad.reshape(-1).nonzero().reshape(-1)
    first = int(places[0])
    g, e = got.reshape(-1)[first].item(), expected.reshape(-1)[first].item()
    return f"{len(places)} of {got.numel()} values, the first at {first}: got {g!r} for {e!r}"


def all_differences(
    got: Sequence[Any],
    expected: Sequence[Any],
    exact: Sequence[Any] | None,
    tolerance: tuple[float, float],
    signs: bool = True,
) -> str | None:
    """The first difference between two lists of results."""
    if len(got) != len(expected):
        return f"{len(got)} results for {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected)):
        found = difference(g, e, exact[i] if exact is not None and i < len(exact) else None, tolerance, signs)
        if found is not None:
            return found if len(got) == 1 else f"result {i}: {found}"
    return None


def ulps(got: Any, expected: Any) -> int:
    """Largest distance of finite floats in units in the last place: numbers of the format that lie between."""
    if not isinstance(got, Tensor) or got.numel() == 0:
        return 0
    got, expected = in_parts(dense(got)), in_parts(dense(expected))
    if not got.dtype.is_floating_point:
        return 0
    both = torch.isfinite(got) & torch.isfinite(expected)
    if not both.any():
        return 0
    return int((_place(got[both]) - _place(expected[both])).abs().max())


def _place(x: Tensor) -> Tensor:
    """The number of each float when all of a format are counted upwards from zero."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(kind).to(torch.int64)
    lowest = -(2 ** (8 * x.element_size() - 1))
    return torch.where(bits < 0, lowest - bits, bits)
