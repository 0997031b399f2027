# SPDX-License-Identifier: Apache-2.0
"""How a product of matrices is cut into blocks that fit on chip: what is possible, and what takes the least time."""
