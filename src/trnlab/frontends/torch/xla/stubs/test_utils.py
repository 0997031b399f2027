# SPDX-License-Identifier: Apache-2.0
"""torch_xla.test.test_utils: what training scripts of torch_xla print and write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from trnlab.frontends.torch.xla import collectives, ranks
from trnlab.frontends.torch.xla.names import refusing

__all__ = ["close_summary_writer", "get_summary_writer", "print_test_update", "print_training_update"]


def now(format: str = "%H:%M:%S") -> str:
    """The time of day."""
    return time.strftime(format)


def _said(kind: str, device: Any, **values: Any) -> None:
    shown = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    print(f"| {kind} Device={device} {shown} Time={now()}", flush=True)


def print_training_update(
    device: Any, step: int, loss: Any, rate: Any, global_rate: Any, epoch: Any = None, summary_writer: Any = None
) -> None:
    """One line of a step, and its rates in the summary."""
    _said(
        "Training",
        device,
        Epoch=epoch,
        Step=step,
        Loss=f"{float(loss):.5f}",
        Rate=f"{float(rate):.2f}",
        GlobalRate=f"{float(global_rate):.2f}",
    )
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(device: Any, accuracy: Any, epoch: Any = None, step: Any = None) -> None:
    """One line of a test."""
    _said("Test", device, Step=step, Epoch=epoch, Accuracy=None if accuracy is None else f"{float(accuracy):.2f}")


def get_summary_writer(logdir: str | None) -> Any:
    """The first rank's writer for TensorBoard, where a folder is given."""
    if not logdir or not collectives.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=os.path.join(logdir, str(ranks.ordinal())))  # type: ignore[no-untyped-call]


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, Any] = {},
    write_xla_metrics: bool = False,
) -> None:
    """Numbers by their names."""
    for name, value in dict_to_write.items() if summary_writer is not None else ():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Close it, where there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def mp_test(func: Callable[..., Any]) -> Callable[..., Any]:
    """A test as it is."""
    return func


__getattr__ = refusing("torch_xla.test.test_utils", "there is what training scripts print")
