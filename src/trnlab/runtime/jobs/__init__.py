# SPDX-License-Identifier: Apache-2.0
"""Scripts as several ranks: processes that are started, forked and replaced."""
