# SPDX-License-Identifier: Apache-2.0
"""Ops whose results are made of windows of elements, in terms of other ops."""
