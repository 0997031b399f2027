# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests, run on the backend `neuron`."""
