# SPDX-License-Identifier: Apache-2.0
"""`trnlab ui`: a page for each thing that trnlab leaves, served to this host. Its views are documents."""
