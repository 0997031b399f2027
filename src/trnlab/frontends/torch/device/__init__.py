# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device `neuron` and PyTorch's device-generic code for it."""
