# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors of device `neuron`: PyTorch's own, whose indices and values are dense tensors of the device.

An operator on them becomes dense ones on these: of `torch.sparse.mm` rows that are gathered, scaled and added up
where they belong. They are recorded and captured like any others, so the structure is an input of a program, and the
next graph of the same size needs no other. `kernels` has what there is a form for; see ADR 106.

`parts`: making and reading them. `places`: where elements lie. `products`, `structure`, `elementwise`: the forms.
`registration`: under the device's dispatch keys; the rest is the host's (`on_host`). `traced`: while a step is
captured. `gradients`: products whose gradient keeps the structure.
"""
