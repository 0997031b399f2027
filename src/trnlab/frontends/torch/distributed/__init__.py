# SPDX-License-Identifier: Apache-2.0
"""The backend `neuron` of `torch.distributed`: collectives between processes, each of which simulates one core.

`process_group` is what PyTorch sees, `transport` what becomes of what it is asked for, `flat` the tensors of that,
`world` the connection of this process to the others, `jobs` what it was asked for and has not done yet, `calls` how
ranks agree on what they do together, `watch` what finds out that nobody will ever answer.
"""
