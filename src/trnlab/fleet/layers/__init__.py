# SPDX-License-Identifier: Apache-2.0
"""Layers of models as graphs of one rank, forward and backward, and the optimizer's update."""
