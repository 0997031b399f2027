# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three dimensions, their gradients and their transposes: one op of the graph, see
`graph.grad.convolutions`."""

from __future__ import annotations

from trnlab.frontends.torch.lowerings.registry import lowers
from trnlab.graph.grad.convolutions import ConvolutionWindow
from trnlab.graph.ir import Value


def _window(x: Value, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> ConvolutionWindow:
    strides, before, distances = (
        tuple(v) * (len(x.shape) - 2 if len(v) == 1 else 1) for v in (stride, padding, dilation)
    )
    return ConvolutionWindow(strides, before, distances, groups)


@lowers("convolution.default")
def convolution(site, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """The sum is made in fp32, with the bias, before rounding."""
    b, window, wide = site.b, _window(x, stride, padding, dilation, groups), site.wide
    size = site.shape[2:]
    make = window.by_input if transposed else window.forward
    if bias is None:
        return make(site.b, x, weight, size, site.dtype)
    y = make(site.b, x, weight, size, wide(bias).dtype)
    return site.cast(b.add(y, b.reshape(wide(bias), (1, bias.shape[0], *(1 for _ in size)))))


@lowers("convolution_backward.default")
def convolution_backward(
    site, grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """Gradients by the input, the weight and the bias, where `output_mask` asks for them."""
    window = _window(x, stride, padding, dilation, groups)
    by_x, by_weight, by_bias = output_mask
    dx = dweight = dbias = None
    if by_x:
        make = window.forward if transposed else window.by_input
        dx = make(site.b, grad, weight, x.shape[2:], site.types[0].dtype)
    if by_weight:
        seen, slid = (grad, x) if transposed else (x, grad)
        dweight = window.by_weight(site.b, seen, slid, weight.shape[2:], site.types[1].dtype)
    if by_bias:
        space = range(2, len(grad.shape))
        dbias = site.b.convert(site.b.reduce(site.wide(grad), (0, *space)), site.types[2].dtype)
    return dx, dweight, dbias
