# SPDX-License-Identifier: Apache-2.0
"""Accelerators other than Neuron's, as far as comparisons need them: figures, rooflines, utilisations."""
