# SPDX-License-Identifier: Apache-2.0
"""Functions of the older `nki.isa` that are more than their declaration, by what they do."""
