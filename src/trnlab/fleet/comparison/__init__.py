# SPDX-License-Identifier: Apache-2.0
"""Platforms side by side on the same training: bake-offs and alternatives to a plan."""
