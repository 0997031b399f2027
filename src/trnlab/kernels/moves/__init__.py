# SPDX-License-Identifier: Apache-2.0
"""Copies of HBM tensors in another order of their elements."""
