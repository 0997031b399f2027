# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments, and nothing else. Each command's module is imported when it is chosen."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trnlab.cli.commands import COMMANDS, parsed, unknown
from trnlab.errors import TrnlabError
from trnlab.files import why
from trnlab.interrupts import raise_again
from trnlab.quoting import visible
from trnlab.runtime.notices import say, tell

USAGE, INTERRUPTED = 2, 130
_OWN_OUTPUT = ("run", "verify", "precision", "monitor")  # scripts write in this process, or a page is drawn again


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 the script or check failed, 2 an error that is told.

    argv: the words behind the program's name, by default those of the process. Without any the help is shown.
    """
    _open_closed_outputs()
    if isinstance(sys.stdout, io.TextIOWrapper):  # an output in a narrow encoding shows what it can of bars and names
        sys.stdout.reconfigure(errors="replace")
    words = sys.argv[1:] if argv is None else list(argv)
    if problem := unknown(words):
        say(problem)
        return USAGE
    try:
        with _shown(sys.stderr):
            args = parsed(words)
        with contextlib.nullcontext() if args.command in _OWN_OUTPUT else _shown(sys.stdout):
            command = COMMANDS[args.command].load()
            raise_again()
            status: int = command.main(args)
        sys.stdout.flush()
    except TrnlabError as error:
        tell(error)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OSError as error:
        say(f"TRN100: {why(error)}" + (f" ({error.filename})" if error.filename else ""))
    else:
        return status
    return USAGE


class _Shown:
    """An output on which names do nothing: what is no character to see is a `?`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be seen of it."""
        self._stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _shown(stream: Any) -> Iterator[None]:
    """This output, stdout or stderr, shows names only, for a while."""
    name = "stdout" if stream is sys.stdout else "stderr"
    setattr(sys, name, _Shown(stream))
    try:
        yield
    finally:
        setattr(sys, name, stream)


def _open_closed_outputs() -> None:
    """Where the shell closed an output, write it nowhere: else Python has none, and the next file that is opened gets
    its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
