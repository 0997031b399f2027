# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of graphs: `builder.GradientBuilder` records a forward pass and appends its gradients.

`rules` and `products` hold one vector-Jacobian product for each op.
"""
