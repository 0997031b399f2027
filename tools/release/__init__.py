# SPDX-License-Identifier: Apache-2.0
"""A release: what has to be true of the repository, the distributions, and a trial of each."""
