# SPDX-License-Identifier: Apache-2.0
"""The largest of a row, and where values stand."""
