# SPDX-License-Identifier: Apache-2.0
"""Functions of `nki.isa` that are more than their declaration, by what they do; users find them in `nki.isa`."""
