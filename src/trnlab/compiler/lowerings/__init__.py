# SPDX-License-Identifier: Apache-2.0
"""From groups of ops to instructions: one module per kind of loop."""
