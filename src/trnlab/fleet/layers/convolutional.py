# SPDX-License-Identifier: Apache-2.0
"""Layers of networks of images: convolutions, norms by channel and by group, pooling, enlarging.

Images are [N, C, H, W], as PyTorch has them. What is computed, and its gradients, are those of PyTorch's kernels and
decompositions: sums in float32, and the gradient of a norm as one multiple of what arrives, one of the input, and a
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trnlab.fleet.layers.layers import EPSILON
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.graph.grad.convolutions import ConvolutionWindow
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

MOMENTUM = 0.1  # of a batch in the running averages of a norm (PyTorch's default)
REST = (0, 2, 3)  # what is no channel


class ConvolutionalLayers(TrainingLayers):
    """See the head of this module. averages: running averages of norms, each with its new value;
    overflows: of their counts of batches."""

    def __init__(self, name: str, spec: ShardSpec) -> None:
        super().__init__(name, spec)
        self.averages: list[tuple[Value, Value]] = []
        self.overflows: list[Value] = []
        self._passes = 1  # forward, of what is being added: norms that are computed again move their averages again

    def block(self, inside: Callable[..., Value], x: Value, *more: Value) -> Value:
        """What is inside a block, of which the backward pass keeps the inputs alone where the share says so."""
        if self.share.block != "again":
            return inside(x, *more)
        self._passes = 2
        result = self.b.recomputed(inside, x, *more)
        self._passes = 1
        return result

    def convolution(self, name: str, x: Value, out: int, kernel: int, stride: int = 1, bias: bool = False) -> Value:
        """x [N, C, H, W] -> [N, out, H / stride, W / stride], with a square kernel of an odd size."""
        b, weight = self.b, self.weight(name, out, x.shape[1], kernel, kernel)
        window = ConvolutionWindow((stride,) * 2, (kernel // 2,) * 2, (1, 1), 1)
        places = [-(-n // stride) for n in x.shape[2:]]

        def forward(x: Value, weight: Value, bias: Value) -> tuple[Value, ...]:
            y = window.forward(b, x, weight, places, float32)
            return (b.convert(b.add(y, self._by_channel(b.convert(bias, float32), y)), self.form),)

        def back(d: Value, inputs: Sequence[Value], _: Sequence[Value]) -> list[Value]:
            x, weight = inputs[:2]
            of_x = window.by_input(b, d, weight, x.shape[2:], self.form)
            of_weight = window.by_weight(b, x, d, weight.shape[2:], self.form)
            return [of_x, of_weight, b.reduce(b.convert(d, float32), REST)]

        with self.part_of("convolution"):
            if not bias:
                return window.forward(b, x, weight, places, self.form)
            return b.with_gradient(forward, [x, weight, self.weight(name + "_bias", out)], back)[0]

    def linear(self, name: str, x: Value, width: int, bias: bool = False) -> Value:
        """x [..., K] -> [..., width]; a bias is added before the sum is rounded."""
        b, rows = self.b, tuple(range(len(x.shape) - 1))
        if not bias:
            return super().linear(name, x, width)

        def forward(x: Value, weight: Value, bias: Value) -> tuple[Value, ...]:
            y = b.dot_general(x, weight, ((len(rows),), (1,)), dt=float32)
            return (b.convert(b.add(y, b.convert(bias, float32)), self.form),)

        def back(d: Value, inputs: Sequence[Value], _: Sequence[Value]) -> list[Value]:
            of_x = b.dot_general(d, inputs[1], ((len(rows),), (0,)), dt=self.form)
            of_weight = b.dot_general(d, inputs[0], (rows, rows), dt=self.form)
            return [of_x, of_weight, b.reduce(b.convert(d, float32), rows)]

        with self.part_of("linear"):
            given = [x, self.weight(name, width, x.shape[-1]), self.weight(name + "_bias", width)]
            return b.with_gradient(forward, given, back)[0]

    def _by_channel(self, x: Value, like: Value) -> Value:
        """One number for each channel [C], over [N, C, H, W]."""
        return self.b.broadcast_in_dim(x, like.shape, (1,))

    def activation(self, x: Value, name: str) -> Value:
        """As of other layers; the gradient of "relu" reads its result, so that its input need not be kept."""
        b = self.b

        def back(d: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
            if name == "relu":
                return [b.select(b.compare(results[0], "LE", 0.0), 0.0, d)]
            return [b.multiply(b.convert(d, float32), b.gelu_dx(b.convert(inputs[0], float32)))]

        def forward(x: Value) -> tuple[Value, ...]:
            y = b.maximum(b.convert(x, float32), 0.0) if name == "relu" else b.gelu(x)
            return (b.convert(y, self.form),)

        with self.part_of("activation"):
            return b.silu(x) if name == "silu" else b.with_gradient(forward, [x], back)[0]

    # -- norms ----------------------------------------------------------------------------------------------------
    def batch_norm(self, name: str, x: Value) -> Value:
        """x [N, C, H, W], each channel by its mean and variance over this rank's batch, which running averages follow
        (Ioffe and Szegedy 2015)."""
        b, channels, count = self.b, x.shape[1], x.type.size // x.shape[1]

        def forward(x: Value, scale: Value, shift: Value) -> tuple[Value, ...]:
            wide = b.convert(x, float32)
            mean = b.divide(b.reduce(wide, REST), float(count))
            apart = b.subtract(wide, self._by_channel(mean, x))
            variance = b.divide(b.reduce(b.multiply(apart, apart), REST), float(count))
            unit = b.rsqrt(b.add(variance, EPSILON))
            factor = b.multiply(unit, b.convert(scale, float32))
            moved = b.subtract(b.convert(shift, float32), b.multiply(mean, factor))
            y = b.add(b.multiply(wide, self._by_channel(factor, x)), self._by_channel(moved, x))
            return b.convert(y, self.form), mean, unit, variance

        def back(d: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
            _, mean, unit, _ = results
            wide, x = b.convert(d, float32), b.convert(inputs[0], float32)
            total = b.reduce(wide, REST)
            together = b.reduce(b.multiply(b.subtract(x, self._by_channel(mean, x)), wide), REST)
            factor = b.multiply(unit, b.convert(inputs[1], float32))
            slope = b.negate(b.divide(b.multiply(b.multiply(together, factor), b.multiply(unit, unit)), float(count)))
            number = b.negate(b.add(b.divide(b.multiply(total, factor), float(count)), b.multiply(mean, slope)))
            of_x = self._sum_of_multiples(wide, self._by_channel(factor, x), x, slope, number)
            return [of_x, b.multiply(together, unit), total]

        given = [x, self.weight(name + "_scale", channels), self.weight(name + "_shift", channels)]
        with self.part_of("norm"):
            y, mean, _, variance = b.with_gradient(forward, given, back)
            unbiased = b.multiply(variance, count / max(count - 1, 1))
            self._follow(name + "_mean", mean)
            self._follow(name + "_variance", unbiased)
            self._count(b.input(name + "_batches", (), int32))
        return y

    def _sum_of_multiples(self, d: Value, factor: Value, x: Value, slope: Value, number: Value) -> Value:
        b, first = self.b, self.b.multiply(d, factor)
        return b.add(first, b.add(b.multiply(x, self._by_channel(slope, x)), self._by_channel(number, x)))

    def _follow(self, name: str, new: Value) -> None:
        """Move a running average of a norm towards the batch's."""
        b, old = self.b, self.b.input(name, new.shape, self.form)
        moved = old
        for _ in range(self._passes):
            total = b.add(b.multiply(new, MOMENTUM), b.multiply(b.convert(moved, float32), 1 - MOMENTUM))
            moved = b.convert(total, self.form)
        self.averages.append((old, moved))

    def _count(self, batches: Value) -> None:
        """One more batch; PyTorch counts in 64 bits, and whether 32 are enough is checked as its front end does."""
        b = self.b
        one, new = b.constant(1, int32), batches
        for _ in range(self._passes):
            old, new = new, b.add(new, one)
            signs = b.op("and", b.op("xor", old, new), b.op("xor", one, new))
            self.overflows.append(b.reshape(b.convert(b.compare(signs, "LT", 0), int32), (1,)))
        self.averages.append((batches, new))

    def norm(self, name: str, x: Value, kind: str = "rms") -> Value:
        """As of other layers; the gradient of "layer" is made of its mean and reciprocal deviation."""
        if kind != "layer":
            return super().norm(name, x, kind)
        b, rows = self.b, tuple(range(len(x.shape) - 1))

        def mean_of(x: Value) -> Value:
            return b.divide(b.reduce(x, (-1,), keepdims=True), float(x.shape[-1]))

        def forward(x: Value, scale: Value, shift: Value) -> tuple[Value, ...]:
            wide = b.convert(x, float32)
            mean = mean_of(wide)
            apart = b.subtract(wide, mean)
            unit = b.rsqrt(b.add(mean_of(b.multiply(apart, apart)), EPSILON))
            y = b.multiply(b.multiply(apart, unit), b.convert(scale, float32))
            return b.convert(b.add(y, b.convert(shift, float32)), self.form), mean, unit

        def back(d: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
            _, mean, unit = results
            wide = b.convert(d, float32)
            n = b.multiply(b.subtract(b.convert(inputs[0], float32), mean), unit)
            g = b.multiply(wide, b.convert(inputs[1], float32))
            along = b.multiply(n, mean_of(b.multiply(g, n)))
            of_x = b.multiply(unit, b.subtract(b.subtract(g, mean_of(g)), along))
            return [of_x, b.reduce(b.multiply(wide, n), rows), b.reduce(wide, rows)]

        given = [x, *(self.weight(f"{name}_{part}", x.shape[-1]) for part in ("scale", "shift"))]
        with self.part_of("norm"):
            return b.with_gradient(forward, given, back)[0]

    def group_norm(self, name: str, x: Value, groups: int) -> Value:
        """x [N, C, H, W], each group of channels of an image by its mean and variance (Wu and He 2018)."""
        b, (images, channels, *_) = self.b, x.shape
        grouped = (images, groups, channels // groups, x.type.size // (images * channels))
        count = float(grouped[2] * grouped[3])

        def forward(x: Value, scale: Value, shift: Value) -> tuple[Value, ...]:
            wide = b.reshape(b.convert(x, float32), grouped)
            mean = b.divide(b.reduce(wide, (2, 3), keepdims=True), count)
            apart = b.subtract(wide, mean)
            variance = b.divide(b.reduce(b.multiply(apart, apart), (2, 3), keepdims=True), count)
            unit = b.rsqrt(b.add(variance, EPSILON))
            y = b.reshape(b.multiply(apart, unit), x.shape)
            y = b.multiply(y, self._by_channel(b.convert(scale, float32), x))
            y = b.add(y, self._by_channel(b.convert(shift, float32), x))
            kept = (b.reshape(b.convert(v, self.form), grouped[:2]) for v in (mean, unit))
            return b.convert(y, self.form), *kept

        def back(d: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
            return self._back_through_groups(d, inputs, results, grouped)

        given = [x, self.weight(name + "_scale", channels), self.weight(name + "_shift", channels)]
        with self.part_of("norm"):
            return b.with_gradient(forward, given, back)[0]

    def _back_through_groups(
        self, d: Value, inputs: Sequence[Value], results: Sequence[Value], grouped: tuple[int, ...]
    ) -> list[Value]:
        """Gradients of what is normed by group, of its scale and of its shift."""
        b, (images, groups, each, size) = self.b, grouped
        mean, unit = (b.convert(value, float32) for value in results[1:])
        wide, x = b.convert(d, float32), b.convert(inputs[0], float32)
        scale = b.broadcast_in_dim(b.convert(inputs[1], float32), (images, groups * each), (1,))
        rows, within = (images, groups * each, size), (images, groups, each)
        together = b.reduce(b.reshape(b.multiply(wide, x), rows), (2,))
        total = b.reduce(b.reshape(wide, rows), (2,))
        of_products, of_sums = (b.reduce(b.reshape(b.multiply(y, scale), within), (2,)) for y in (together, total))
        cube = b.multiply(b.multiply(unit, unit), unit)
        slope = b.multiply(b.multiply(b.subtract(b.multiply(of_sums, mean), of_products), cube), 1 / (each * size))
        number = b.subtract(
            b.multiply(b.negate(slope), mean), b.multiply(b.multiply(of_sums, unit), 1 / (each * size))
        )
        units, means = (b.broadcast_in_dim(y, within, (0, 1)) for y in (unit, mean))
        factor = b.multiply(units, b.reshape(scale, within))
        parts = b.multiply(b.reshape(wide, grouped), b.broadcast_in_dim(factor, grouped, (0, 1, 2)))
        slopes, numbers = (b.broadcast_in_dim(y, grouped, (0, 1)) for y in (slope, number))
        of_x = b.add(b.add(parts, b.multiply(b.reshape(x, grouped), slopes)), numbers)
        apart = b.subtract(b.reshape(together, within), b.multiply(b.reshape(total, within), means))
        of_scale = b.reshape(b.reduce(b.multiply(apart, units), (0,)), (groups * each,))
        return [b.reshape(of_x, inputs[0].shape), of_scale, b.reduce(total, (0,))]

    # -- between blocks -------------------------------------------------------------------------------------------
    def max_pool(self, x: Value, window: int, stride: int) -> Value:
        """The largest of each square of an odd size, at every `stride`-th place."""
        return self.b.op(
            "trn.max_pool",
            x,
            window=(window,) * 2,
            window_strides=(stride,) * 2,
            padding_low=(window // 2,) * 2,
            places=tuple(-(-n // stride) for n in x.shape[2:]),
        )

    def mean_pool(self, x: Value) -> Value:
        """[N, C, H, W] -> [N, C], the mean over each image."""
        b, count = self.b, float(x.shape[2] * x.shape[3])

        def forward(x: Value) -> tuple[Value, ...]:
            return (b.convert(b.divide(b.reduce(b.convert(x, float32), (2, 3)), count), self.form),)

        def back(d: Value, *_: Sequence[Value]) -> list[Value]:
            return [b.divide(b.convert(b.broadcast_in_dim(d, x.shape, (0, 1)), float32), count)]

        return b.with_gradient(forward, [x], back)[0]

    def enlarged(self, x: Value, times: int = 2) -> Value:
        """Each pixel so many times as wide and high, by its number, as PyTorch's `interpolate` reads it."""
        b, (*ends, height, width) = self.b, x.shape
        pixels = b.reshape(b.transpose(b.convert(x, float32), (2, 3, 0, 1)), (height * width, ends[0] * ends[1]))
        numbers = np.arange(height * width, dtype=np.int32).reshape(height, width)
        read = b.take_rows(pixels, b.constant(numbers.repeat(times, 0).repeat(times, 1)))
        y = b.reshape(read, (height * times, width * times, *ends))
        return b.convert(b.transpose(y, (2, 3, 0, 1)), self.form)

    def rows(self, x: Value) -> Value:
        """[N, C, H, W] -> [N, H W, C], pixels as the tokens of a sequence."""
        return self.b.transpose(self.b.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3])), (0, 2, 1))

    def image(self, rows: Value, like: Value) -> Value:
        """[N, H W, C] -> [N, C, H, W], of the height and width of another image."""
        return self.b.reshape(self.b.transpose(rows, (0, 2, 1)), (*rows.shape[::2], *like.shape[2:]))

    def squared_error(self, x: Value, meant: Value) -> Value:
        """The mean square of x - meant, in float32."""
        b = self.b
        with self.part_of("loss"):
            apart = b.subtract(b.convert(x, float32), b.convert(meant, float32))
            return b.divide(b.reduce(b.multiply(apart, apart), tuple(range(len(x.shape)))), float(x.type.size))
