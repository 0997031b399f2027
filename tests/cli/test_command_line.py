# SPDX-License-Identifier: Apache-2.0
"""The command line end to end, in processes of its own: what it does, and what is shown when something is wrong.

The processes are copies of one which has imported PyTorch. New ones, as a shell starts them, are those that tell an
error, end by an exception, end by a signal, or find no reader; and those that look at what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests import processes

TRNLAB = [sys.executable, "-m", "trnlab"]
TARGET = ("--target", "trn1.2xlarge")
Done = subprocess.CompletedProcess[str]

MATMUL = """
    import numpy as np
    from trnlab.graph.builder import GraphBuilder
    from trnlab.numerics.dtypes import float32
    from trnlab.runtime import device, session

    now = session.current()
    b = GraphBuilder("train_step")
    x, w = b.input("x", (64, 64), float32), b.input("w", (64, 64), float32)
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    b.output(b.op("dot_general", x, w, **dims, dtype=float32), "y")
    loaded = device.Loaded(device.compile_graph(b.build(), now), now)
    a = np.eye(64, dtype=np.float32)
    for loss in (3.0, 2.0, 1.5):
        (a,) = loaded.run([a, 2 * np.eye(64, dtype=np.float32)])
        now.run.step(loss, tokens=64)
    print("result", a[0, 0])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with its own cache."""
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRNLAB")}
    return {**kept, "TRNLAB_CACHE": str(folder / "cache"), **more}


def run(folder: Path, *arguments: str, **more: str) -> Done:
    return processes.run([*TRNLAB, *arguments], cwd=folder, env=environment(folder, **more), timeout=300)


def run_anew(folder: Path, *arguments: str) -> Done:
    """In a new process, as a shell starts it."""
    command = [*TRNLAB, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(folder), text=True, capture_output=True, timeout=300)


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def summary(folder: Path, name: str = "runs/train-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return found


def one_line(done: Done, code: str) -> str:
    """The only line on stderr, which has this code; status 2, and nothing that looks like a traceback."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"trnlab: {code}: "), line
    return line


# -- what works -----------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_whole_summary_its_executables_and_their_timelines(folder: Path) -> None:
    done = run(folder, "run", *TARGET, "--seed", "7", script(folder, MATMUL))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "result 8.0"), done.stderr
    found = summary(folder)
    assert (found["schema"], found["version"], found["status"], found["complete"]) == (
        "trnlab.summary",
        2,
        "complete",
        True,
    )
    assert (found["target"], found["precision"], found["seed"]) == ("trn1.2xlarge", "bf16", 7)
    assert (found["steps"], found["loss"], found["steps_found_by"]) == (3, [3.0, 2.0, 1.5], "report")
    assert found["host_fallback_ops"] == {"setup": 0, "training": 0}
    assert found["compile"]["cache"] == "miss"
    assert found["step_time_s"] > 0
    assert found["tokens_per_s"] == pytest.approx(64 / found["step_time_s"])
    assert found["mfu"] == pytest.approx(2 * 64**3 / found["step_time_s"] / found["peak_flops"])
    assert found["instructions"] == 3 * found["instructions_per_step"]
    assert {"tensor", "vector", "scalar", "gpsimd", "sync", "dma"} == set(found["engines"])
    assert all(0 <= engine["active"] <= 1 for engine in found["engines"].values())
    assert found["hbm"]["write_bytes"] >= 64 * 64 * 4
    assert found["memory"]["peak_bytes"] >= 3 * 64 * 64 * 4
    assert found["cost"]["usd_per_million_tokens"] > 0
    assert found["assumptions"]
    (key,) = (path.stem for path in (folder / "runs/train-1/executables").iterdir())
    assert (folder / f"runs/train-1/timelines/{key}.trntime").exists()

    again = run(folder, "run", *TARGET, "train.py")
    assert again.returncode == 0
    assert summary(folder, "runs/train-2")["compile"]["cache"] == "hit"
    assert summary(folder, "runs/train-2")["step_time_s"] == found["step_time_s"]

    shown = run(folder, "profile", "runs/train-1")
    assert shown.returncode == 0
    assert "train-1 on trn1.2xlarge (trn1, bf16)" in shown.stdout
    assert "3.0000 -> 1.5000" in shown.stdout

    listed = run(folder, "cache", "ls")
    assert f"{key[:12]}  train_step  trn1" in listed.stdout
    assert run(folder, "cache", "verify").stdout.startswith("1 of 1 entries are sound")
    assert key[:12] in run(folder, "cache", "explain", "train.py").stdout
    assert run(folder, "cache", "clear").stdout.startswith("removed 1 entries")


def test_the_script_sees_its_own_arguments_folder_and_name(folder: Path) -> None:
    (folder / "sub").mkdir()
    script(folder / "sub", "VALUE = 42\n", "helper.py")
    script(folder / "sub", "import sys, helper\nprint(__name__, sys.argv, helper.VALUE)\nsys.exit(5)\n")
    done = run(folder, "run", *TARGET, "--no-cache", "--out", "here", "sub/train.py", "--lr", "3", "--help")
    assert done.returncode == 5
    assert done.stdout == "__main__ ['sub/train.py', '--lr', '3', '--help'] 42\n"
    assert summary(folder, "here")["status"] == "failed"


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("chips",), ("chips", "trn2")])
def test_a_question_does_not_load_what_it_does_not_need(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom trnlab.cli.main import main\n"
        f"try:\n    main({list(arguments)!r})\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numba', 'numpy'} & set(sys.modules), 'too much is imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_environment_chooses_the_target_where_the_command_does_not(folder: Path) -> None:
    name = script(
        folder,
        "from trnlab.runtime import session\nprint(session.current().target.name, session.current().precision)",
    )
    done = run(folder, "run", name, TRNLAB_TARGET="trn2.3xlarge", TRNLAB_PRECISION="fp32")
    assert done.stdout == "trn2.3xlarge fp32\n"
    done = run(folder, "run", *TARGET, name, TRNLAB_TARGET="trn2.3xlarge")
    assert done.stdout == "trn1.2xlarge bf16\n"


def test_isa_shows_an_instruction(folder: Path) -> None:
    assert "nc_matmul(dst, stationary, moving" in run(folder, "isa").stdout
    assert run(folder, "isa", "nc_matmul").stdout.startswith("# nc_matmul")


# -- what goes wrong ------------------------------------------------------------------------------------------------


def test_an_unknown_target_is_one_line_with_the_known_ones(folder: Path) -> None:
    line = one_line(run_anew(folder, "run", "--target", "trn1.2xlage", script(folder, "")), "TRN101")
    assert "did you mean 'trn1.2xlarge'?" in line
    assert not (folder / "runs").exists()


def test_no_target_is_one_line_with_the_ways_to_choose(folder: Path) -> None:
    line = one_line(run(folder, "run", script(folder, MATMUL)), "TRN120")
    assert "--target" in line
    assert "TRNLAB_TARGET" in line


def test_a_plain_python_run_without_a_target_says_how_to_choose(folder: Path) -> None:
    script(folder, "from trnlab.runtime import session\nsession.current()")
    done = processes.run([sys.executable, "train.py"], cwd=folder, env=environment(folder))
    assert "TRN120: no target is chosen" in done.stderr
    assert "trnlab run --target" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", *TARGET, "missing.py"), "TRN123"),
        (("run", *TARGET, "."), "TRN123"),
        (("chips", "trn9"), "TRN101"),
        (("isa", "nc_matmull"), "TRN125"),
        (("profile", "nowhere"), "TRN810"),
        (("profile", "."), "TRN810"),
        (("cache", "explain", "nothing"), "TRN124"),
        (("run", *TARGET, "--cache", "a_file", "train.py"), "TRN122"),
        (("cache", "ls", "--cache", "a_file"), "TRN122"),
        (("run", *TARGET, "--out", "a_file", "train.py"), "TRN813"),
        (("run", *TARGET, "--out", "a_file/inside", "train.py"), "TRN813"),
    ],
)
def test_what_the_request_has_wrong_is_one_line(folder: Path, arguments: tuple[str, ...], code: str) -> None:
    script(folder, "print('it ran')")
    (folder / "a_file").write_text("")
    done = run(folder, *arguments)
    one_line(done, code)
    assert done.stdout == ""


def test_a_damaged_summary_is_one_line(folder: Path) -> None:
    (folder / "summary.json").write_text('{"schema": "trnlab.summ')
    one_line(run(folder, "profile", "."), "TRN812")
    (folder / "summary.json").write_text('{"schema": "trnlab.summary", "version": 99}')
    one_line(run(folder, "profile", "."), "TRN812")


# The nearest thing to a full disk that a test may make: no file may grow.
FULL_DISK = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
MAIN = "import sys\nfrom trnlab.cli.main import main\nsys.exit(main(sys.argv[1:]))"


def test_a_disk_that_is_full_at_the_start_is_one_line_before_anything_runs(folder: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK + MAIN, "run", *TARGET, script(folder, "print('it ran')")]
    done = processes.run(command, cwd=folder, env=environment(folder))
    one_line(done, "TRN813")
    assert done.stdout == ""


@pytest.mark.parametrize("every_s", [3600, 0])
def test_a_disk_that_fills_up_costs_the_cache_and_the_report_but_not_the_training(folder: Path, every_s: int) -> None:
    """Also where the summary would have been renewed on the way."""
    assert run(folder, "run", *TARGET, "--cache", "other", script(folder, MATMUL)).returncode == 0
    fill = f"from trnlab.runtime import run\nrun.SAVE_EVERY_S = {every_s}" + FULL_DISK
    done = run(folder, "run", *TARGET, "--out", "run", script(folder, fill + textwrap.dedent(MATMUL)))
    assert "result 8.0" in done.stdout
    assert done.returncode == 2
    cache, report = done.stderr.splitlines()
    assert "the cache cannot be written, going on without it" in cache
    assert "TRN813" in report
    assert (summary(folder, "run")["status"], summary(folder, "run")["complete"]) == ("running", False)
    assert [p.name for p in (folder / "run").rglob("*") if p.is_file()] == ["summary.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give root's rights up")
def test_no_permission_is_one_line(folder: Path) -> None:
    """Permissions do not bind root, so the command gives root up once it is imported and started."""
    for parent in (folder, *(p for p in folder.parents if "pytest" in str(p))):
        parent.chmod(0o755)
    script(folder, "print('it ran')")
    code = """
import os, sys
import trnlab.cli.run
from trnlab.cli.commands import parsed
from trnlab.cli.main import main
arguments = ["run", "--target", "trn1.2xlarge", "train.py"]
parsed(arguments)
os.seteuid(65534)
sys.exit(main(arguments))
"""
    done = processes.run([sys.executable, "-c", code], cwd=folder, env=environment(folder))
    assert "no permission" in one_line(done, "TRN813")


def test_the_users_exception_is_shown_as_the_users_traceback(folder: Path) -> None:
    name = script(folder, "def train():\n    raise ValueError('mine')\ntrain()\n")
    done = run_anew(folder, "run", *TARGET, name)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: mine"
    assert "train.py" in lines[1]
    assert "trnlab" not in done.stderr.replace(str(folder), "")
    assert "runpy" not in done.stderr
    assert summary(folder)["status"] == "failed"


def test_a_syntax_error_in_the_script_is_shown_as_python_shows_it(folder: Path) -> None:
    done = run(folder, "run", *TARGET, script(folder, "for\n"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("SyntaxError")
    assert "runpy" not in done.stderr


@pytest.mark.parametrize("wrapped", [False, True])
def test_our_errors_are_shown_as_their_message_even_when_a_framework_wraps_them(folder: Path, wrapped: bool) -> None:
    text = """
    from trnlab.errors import Location, UnsupportedOpError
    class Wrapped(Exception):
        pass
    ours = UnsupportedOpError("aten.fft has no lowering", where=Location("train.py", 3, text="fft(x)"))
    error = Wrapped("backend failed")
    error.inner_exception = ours
    """
    text += "raise error" if wrapped else "raise ours"
    done = run(folder, "run", *TARGET, script(folder, text))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "TRN200: aten.fft has no lowering"
    assert "Traceback" not in done.stderr
    assert "fft(x)" in done.stderr


def test_what_does_not_fit_is_told_before_anything_runs(folder: Path) -> None:
    done = run(
        folder, "run", *TARGET, script(folder, MATMUL.replace("(64, 64), float32)", "(1 << 17, 1 << 17), float32)"))
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "TRN510: 'train_step' does not fit in the HBM of one core"
    assert "largest: x float32[131072, 131072] 64 GiB" in done.stderr


def test_a_damaged_cache_entry_is_noticed_rebuilt_and_said(folder: Path) -> None:
    name = script(folder, MATMUL)
    assert run(folder, "run", *TARGET, name).returncode == 0
    (entry,) = (folder / "cache").rglob("*.trnx")
    entry.write_bytes(entry.read_bytes()[:-10])
    assert run(folder, "cache", "verify").returncode == 1
    done = run(folder, "run", *TARGET, name)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "is not usable and is rebuilt" in line
    assert summary(folder, "runs/train-2")["compile"]["cache"] == "miss"
    assert run(folder, "cache", "verify").returncode == 0


def started(folder: Path, text: str, begin: Any = processes.start) -> Any:
    """A run whose script has printed its first line; it hears Ctrl-C even where tests run in the background."""
    hears = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", hears + MAIN, "run", *TARGET, script(folder, text)]
    process = begin(
        command, cwd=folder, env=environment(folder), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize(
    ("begin", "number", "status"), [(subprocess.Popen, signal.SIGINT, 130), (processes.start, signal.SIGTERM, 143)]
)
def test_an_interrupted_run_ends_with_a_partial_summary(
    folder: Path, begin: Any, number: signal.Signals, status: int
) -> None:
    text = """
    import time
    from trnlab.runtime import session
    session.current().run.step(1.25)
    print("running", flush=True)
    time.sleep(60)
"""
    process = started(folder, text, begin)
    process.send_signal(number)
    _, stderr = processes.communicate(process, timeout=300)
    assert process.returncode == status
    assert "Traceback" not in stderr
    found = summary(folder)
    assert (found["status"], found["complete"], found["loss"]) == ("interrupted", False, [1.25])
    assert "interrupted: what follows is partial" in run(folder, "profile", "runs/train-1").stdout


def test_a_killed_run_leaves_a_summary_that_is_whole_and_says_it_is_partial(folder: Path) -> None:
    text = """
    from trnlab.runtime import run, session
    run.SAVE_EVERY_S = 0
    print("running", flush=True)
    while True:
        session.current().run.step(2.5)
"""
    for i in range(1, 4):
        process = started(folder, text)
        time.sleep(0.05 * i)
        process.kill()
        processes.communicate(process, timeout=300)
        found = summary(folder, f"runs/train-{i}")
        assert (found["status"], found["complete"]) == ("running", False)
        assert found["steps"] == len(found["loss"])


def test_a_reader_that_stops_reading_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m trnlab.cli.main chips trn1 | head -n 1", shell=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


# -- scripts that do what nobody expects -----------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "status"), [("-1", 255), ("256", 0), ("True", 1), ("'bye'", 1), ("2**40 + 7", 7)])
def test_exit_statuses_are_those_of_python(folder: Path, code: str, status: int) -> None:
    name = script(folder, f"import sys\nsys.exit({code})\n")
    assert run(folder, "run", *TARGET, "--no-cache", name).returncode == status


def test_exceptions_that_cause_each_other_or_hold_no_exception_end_the_run(folder: Path) -> None:
    name = script(
        folder,
        """
        class Odd(Exception):
            inner_exception = "no exception"
        first, second = Odd("first"), Odd("second")
        first.__cause__, second.__cause__ = second, first
        raise first
        """,
    )
    done = run(folder, "run", *TARGET, "--no-cache", name)
    assert done.returncode == 1
    assert "Odd: first" in done.stderr


def test_a_step_whose_loss_is_no_number_is_refused(folder: Path) -> None:
    name = script(folder, "from trnlab.runtime import session\nsession.current().run.step('x')\n")
    line = one_line(run(folder, "run", *TARGET, "--no-cache", name), "TRN154")
    assert "str 'x'" in line


def test_what_the_package_of_a_module_raises_is_the_scripts_own_traceback(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "__init__.py").write_text("import missing_package\n")
    (folder / "broken" / "main.py").write_text("")
    done = run(folder, "run", *TARGET, "-m", "broken.main")
    assert done.returncode == 1
    assert "import missing_package" in done.stderr
    assert "No module named 'missing_package'" in done.stderr
    line = one_line(run(folder, "run", *TARGET, "-m", "broken.other"), "TRN123")
    assert "there is no module 'broken.other'" in line


def test_packages_around_a_module_are_imported_in_the_run_with_its_arguments(folder: Path) -> None:
    reads = (
        "import sys\nfrom trnlab.runtime.session import active\nprint(__name__, sys.argv[1:], active() is not None)\n"
    )
    (folder / "outer" / "spaces" / "inner").mkdir(parents=True)  # the one in the middle has no file
    (folder / "outer" / "__init__.py").write_text(reads)
    (folder / "outer" / "spaces" / "inner" / "__init__.py").write_text(reads)
    (folder / "outer" / "spaces" / "inner" / "__main__.py").write_text(reads)
    done = run(folder, "run", *TARGET, "-m", "outer.spaces.inner", "--steps", "3")
    names = ("outer", "outer.spaces.inner", "__main__")
    assert done.stdout.splitlines()[:3] == [f"{name} ['--steps', '3'] True" for name in names]


def test_a_run_in_eager_mode_says_that_the_host_did_all(folder: Path) -> None:
    name = script(
        folder,
        """
        import torch
        x = torch.ones(3, device="neuron")
        for _ in range(5):
            x = x * 2
        """,
    )
    done = run(folder, "run", *TARGET, name, TRNLAB_EAGER="host")
    assert done.returncode == 0
    assert "all 6 operators on neuron tensors ran on the host, which is eager mode" in done.stderr
    assert summary(folder)["host_fallback_ops"] == {"setup": 6, "training": 0}
    assert summary(folder)["host_fallbacks"]["setup"] == {"aten::mul": 5, "aten::fill_": 1}


def test_what_the_compiler_refuses_ends_the_run_with_the_coded_message_alone(folder: Path) -> None:
    name = script(
        folder,
        """
        import torch
        torch.compile(lambda x: torch.linalg.svd(x)[1].sum(), backend="neuron")(torch.eye(3, device="neuron"))
        """,
    )
    done = run(folder, "run", *TARGET, name)
    assert done.returncode == 2
    assert "TRN201" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
