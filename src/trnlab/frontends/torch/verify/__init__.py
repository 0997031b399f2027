# SPDX-License-Identifier: Apache-2.0
"""`trnlab verify`: a script's first steps on the chip and on the host, op by op. See docs/verify.md."""
