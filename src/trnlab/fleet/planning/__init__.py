# SPDX-License-Identifier: Apache-2.0
"""From a question to a plan, and what the plan depends on."""
