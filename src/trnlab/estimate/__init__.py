# SPDX-License-Identifier: Apache-2.0
"""What `trnlab check` and `trnlab estimate` say of a script: findings, memory, time, cost; as data, text, a page."""
