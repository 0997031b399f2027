# SPDX-License-Identifier: Apache-2.0
"""A run, a comparison and a measured profile as pages, section by section."""
