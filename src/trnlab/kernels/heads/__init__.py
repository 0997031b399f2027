# SPDX-License-Identifier: Apache-2.0
"""Heads of attention that are worked on together, and where they lie."""
