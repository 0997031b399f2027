# SPDX-License-Identifier: Apache-2.0
"""Modules of torch_xla and torch_neuronx whose names exist and that do little or refuse."""
