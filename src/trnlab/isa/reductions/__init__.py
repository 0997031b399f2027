# SPDX-License-Identifier: Apache-2.0
"""Sums, extremes, statistics and recurrences along rows or across partitions."""
