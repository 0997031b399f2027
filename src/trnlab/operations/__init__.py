# SPDX-License-Identifier: Apache-2.0
"""What an operator uses: what runs now (`monitor`), and whether a host is fit for a job (`doctor`)."""
