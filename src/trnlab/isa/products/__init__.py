# SPDX-License-Identifier: Apache-2.0
"""Products and transpositions on the PE array, and their packed formats."""
