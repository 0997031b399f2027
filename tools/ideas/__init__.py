# SPDX-License-Identifier: Apache-2.0
"""Public kernels made faster by `trnlab ideas`, from clones of their repositories: the table of docs/bench.md."""
