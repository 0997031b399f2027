# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows: the largest elements and averages, and their gradients."""
