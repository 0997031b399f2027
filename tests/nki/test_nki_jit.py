# SPDX-License-Identifier: Apache-2.0
"""How kernels are made and called: forms of nki.jit, annotations, addresses."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
import trnlab.nki.typing as nt
from trnlab import chips
from trnlab.errors import CapacityError, ConstraintError, UsageError
from trnlab.policy import AS_WRITTEN, SCHEDULED
from trnlab.sim.timing import time_routine

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def copied(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@pytest.mark.parametrize(
    "decorate",
    [
        nki.jit,
        nki.jit(),
        nki.jit(mode="trace"),
        nki.jit(show_compiler_tb=True),
        nki.simulate,
        nki.cpu_simulate,
        lambda f: nki.simulate(nki.jit(f)),
        lambda f: nki.jit(nki.jit(f)),
    ],
)
def test_forms_of_the_decorator(decorate):
    kernel = decorate(copied)
    np.testing.assert_array_equal(kernel(X), X)
    np.testing.assert_array_equal(kernel(x=X), X)
    assert kernel.__name__ == "copied"


@pytest.mark.filterwarnings("ignore::trnlab.checks.CheckWarning")  # the vendor's compiler no longer takes it
def test_a_kernel_may_say_its_chip():
    versions = []

    @nki.jit(platform_target="trn3")
    def kernel(x):
        versions.append(nisa.get_nc_version())
        return copied(x)

    kernel(X)
    nki.jit(kernel.function, platform_target="gen2")(X)
    assert versions == [nisa.nc_version.gen4, nisa.nc_version.gen2]
    with pytest.raises(UsageError):
        nki.jit(copied, platform_target="trn9")


def test_an_unknown_option_causes_a_warning():
    with pytest.warns(UserWarning, match="speed"):
        nki.jit(copied, speed=11)


def test_shapes_that_annotations_declare_are_checked():
    def kernel(x, y):
        return copied(x)

    kernel.__annotations__ = {"x": nt.tensor[2, 4], "y": nt.tensor["rows", 4]}
    kernel = nki.jit(kernel)
    np.testing.assert_array_equal(kernel(X, np.ones((7, 4))), X)
    for x, y in ((X.T, X), (X, X.T), (X[0], X)):
        with pytest.raises(UsageError) as caught:
            kernel(x, y)
        assert caught.value.code == "TRN111"
    assert repr(nt.mutable_tensor[2, 4]) == "tensor[2, 4]"


@nki.jit
def placed(x):
    """Two tiles at addresses of the kernel's choice."""
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(32, 1024))
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out[0], src=tile)
    other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(32, 2048))
    nisa.tensor_copy(dst=other[:, 2:4], src=tile[:, 2:4])
    register = nisa.register_alloc(nl.load(nl.shared_constant(np.array([[1]], np.int32))))
    for _ in nl.dynamic_range(register):
        nisa.tensor_copy(dst=other[:, 0:2], src=other[:, 2:4])
    nisa.dma_copy(dst=out[1], src=other)
    return out


def test_tiles_lie_where_the_kernel_says_also_while_it_is_recorded():
    np.testing.assert_array_equal(placed(X), [X, np.tile(X[:, 2:4], 2)])


def test_addresses_that_cannot_be_are_refused():
    def at(buffer, address, shape=(128, 8)):
        def body(x):
            nisa.memset(nl.ndarray(shape, dtype=nl.float32, buffer=buffer, address=address), 0.0)

        with pytest.raises((ConstraintError, CapacityError)) as caught:
            nki.jit(body)(X)
        assert caught.value.where.file == __file__
        return caught.value

    assert at(nl.sbuf, (0, 10**6)).code == "TRN501"
    assert at(nl.psum, (0, 8 * 2048 - 4)).code == "TRN502"
    for address in ((64, 0), 5, (0, -4), (0, 2046), (0, 1.5)):
        assert at(nl.sbuf, address).code == "TRN411"
    assert at(nl.shared_hbm, (0, 0)).code == "TRN411"


@nki.jit
def named(x, wire=None):
    """Two instructions that share nothing; wire(first, second) may connect them."""
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    a, b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    first = nisa.reciprocal(dst=a, data=tile, name="recip")
    second = nisa.activation(dst=b, data=tile, op=nl.exp, name="exp")
    if wire:
        assert wire(first, second) == second
    nisa.dma_copy(dst=out[0], src=a)
    nisa.dma_copy(dst=out[1], src=b)
    return out


def test_dependencies_that_share_no_memory():
    forms = [
        lambda: named.trace(X + 1, lambda first, second: second.depends_on(first)),
        lambda: named.with_schedule([("exp", "recip")]).trace(X + 1),
        lambda: named.with_schedule([("exp", ["recip"])]).trace(X + 1),
    ]
    plain = named.trace(X + 1).routine
    assert plain.after == ()
    for form in forms:
        routine = form().routine
        ((before, later),) = routine.after
        assert before < later
        assert len(routine) == len(plain)
        for policy in (AS_WRITTEN, SCHEDULED):
            alone, connected = (time_routine(r, chips.get("trn2"), policy=policy) for r in (plain, routine))
            assert alone.start[later] < alone.done[before], "they overlap where nothing connects them"
            assert connected.start[later] > connected.done[before]
    np.testing.assert_array_equal(named.with_schedule([("exp", "recip")])(X + 1), named(X + 1))


def test_dependencies_that_cannot_be_are_refused():
    for schedule in ([("recip", "exp")], [("exp", "sum")]):
        with pytest.raises(UsageError) as caught:
            named.with_schedule(schedule)(X)
        assert caught.value.code == "TRN111"

    def looping(x):
        inner = []
        tile = nl.load(x)
        nl.fori_loop(0, 2, lambda i: inner.append(nisa.reciprocal(dst=tile, data=tile)))
        nisa.reciprocal(dst=tile, data=tile).depends_on(inner[0])

    for body in (lambda first, second: first.depends_on(second), lambda first, second: second.depends_on("recip")):
        with pytest.raises(ConstraintError) as caught:
            named(X, body)
        assert caught.value.code == "TRN411"
    with pytest.raises(ConstraintError, match="loop on the device"):
        nki.jit(looping)(X)
