# SPDX-License-Identifier: Apache-2.0
"""Passes over the graph, before its ops are put into groups."""
