# SPDX-License-Identifier: Apache-2.0
"""Training scripts of models in real sizes through `trnlab estimate`, judged by what owes nothing to our compiler."""
