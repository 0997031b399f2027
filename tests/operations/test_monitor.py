# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself, and the vendor's forms of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import urllib.request
from types import SimpleNamespace

import pytest

from tests import processes
from trnlab import chips
from trnlab.cli.commands import parsed
from trnlab.cli.main import main
from trnlab.cli.monitor import Server, handler
from trnlab.errors import CollectiveError, NumericsError
from trnlab.operations import host, monitor, monitor_text
from trnlab.operations.monitor import MonitorSnapshot
from trnlab.program import Program
from trnlab.runtime import status_file
from trnlab.runtime.session import Session

NOBODY = 0x3FFFFFFF  # no process has this number


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(status_file.PLACE, str(tmp_path / "live"))
    return tmp_path / "live"


def said(**fields):
    """The record of a rank on the fourth logical core of its instance, 30 executions of 2 ms and 10 of 4 ms."""
    executions = [
        {"name": "step", "key": "a", "calls": 30, "latency_s": 0.002, "flops": 8_000_000},
        {"name": "other", "key": "b", "calls": 10, "latency_s": 0.004, "flops": 0},
    ]
    record = {
        "schema": status_file.SCHEMA,
        "version": status_file.VERSION,
        "pid": os.getpid(),
        "birth": status_file.birth(os.getpid()),
        "updated": 100.0,
        "status": "running",
        "errors": {},
        "outcomes": {},
        "ecc": {},
        "tag": "mine",
        "target": "trn2.48xlarge",
        "instances": 1,
        "rank": 3,
        "ranks": 4,
        "place": {"instance": 0, "chip": 0, "core": 3},
        "logical": 2,
        "pairs": False,
        "network_s": 0.02,
        "input_s": 0.08,
        "executions": executions,
        "started": 90.0,
        "steps": 40,
        "loss": [0.5],
        "script": "train.py",
        "memory": {"constants": 1, "model_shared_scratchpad": 2, "tensors": 4},
    }
    return {**record, **fields}


def seen(*records, at=100.0, gone=False):
    states = [status_file.State(record, gone) for record in records]
    return MonitorSnapshot(at, {state.pid: state for state in states}, host.processors())


def report(now, before=None):
    (found,) = monitor.reports(now, before or MonitorSnapshot())
    return found


def test_a_report_has_the_vendors_names():
    found = report(seen(said()))
    assert sorted(found) == ["instance_info", "neuron_hardware_info", "neuron_runtime_data", "system_data"]
    (application,) = found["neuron_runtime_data"]
    assert (application["pid"], application["neuron_runtime_tag"], application["error"]) == (os.getpid(), "mine", "")
    core = application["report"]["neuroncore_counters"]["neuroncores_in_use"]["3"]
    halves = [core["v3d"][f"nc_v3.{i}"]["neuroncore_utilization"] for i in (6, 7)]
    assert halves == pytest.approx([50, 0])  # 100 ms of executions beside 20 of network and 80 of input
    assert core["neuroncore_utilization"] == pytest.approx(25)
    assert core["flops"] == 30 * 8_000_000 / 0.2
    used = application["report"]["memory_used"]["neuron_runtime_used_bytes"]
    assert used["neuron_device"] == 7
    assert used["usage_breakdown"]["neuroncore_memory_usage"]["3"]["tensors"] == 4
    hardware = found["neuron_hardware_info"]
    assert hardware["neuron_device_memory_size"] == 103079215104  # as the vendor's guide prints it for this chip
    assert (hardware["neuroncore_per_device_count"], hardware["neuron_device_count"]) == (4, 16)
    assert found["instance_info"]["instance_type"] == "trn2.48xlarge"


def test_counters_are_of_the_period():
    later = said(
        executions=[{"name": "step", "key": "a", "calls": 35, "latency_s": 0.002, "flops": 0}],
        errors={"hardware": 1},
        outcomes={"completed_with_err": 1},
    )
    earlier = said(executions=[{"name": "step", "key": "a", "calls": 30, "latency_s": 0.002, "flops": 0}])
    found = report(seen(later, at=102.0), seen(earlier))["neuron_runtime_data"][0]["report"]["execution_stats"]
    assert found["period"] == 2.0
    assert found["execution_summary"]["completed"] == 5
    assert (found["error_summary"]["hardware"], found["execution_summary"]["completed_with_err"]) == (1, 1)
    idle = report(seen(later, at=104.0), seen(later, at=102.0))["neuron_runtime_data"][0]["report"]
    assert idle["execution_stats"]["latency_stats"] == {"total_latency": None, "device_latency": None}
    assert idle["execution_stats"]["error_summary"]["hardware"] == 0


def test_percentiles_are_those_of_all_executions():
    counted = [(0.001, 1), (0.002, 98), (0.009, 1)]
    found = monitor.percentiles(counted)
    assert found == {"p0": 0.001, "p1": 0.001, "p25": 0.002, "p50": 0.002, "p75": 0.002, "p99": 0.002, "p100": 0.009}
    assert monitor.percentiles([]) is None


def test_each_instance_has_a_report_of_its_own():
    other = said(pid=NOBODY, place={"instance": 1, "chip": 5, "core": 0}, ecc={"mem_ecc_uncorrected": 1})
    first, second = monitor.reports(seen(said(), other), MonitorSnapshot())
    assert [len(each["neuron_runtime_data"]) for each in (first, second)] == [1, 1]
    assert second["instance_info"]["instance_id"] == "i-simulated-1"
    events = second["system_data"]["neuron_hw_counters"]["neuron_devices"]
    assert [device["mem_ecc_uncorrected"] for device in events] == [0] * 5 + [1] + [0] * 10


def test_metrics_are_those_of_the_vendors_exporter():
    text = monitor_text.prometheus([report(seen(said(tag='a "b"')))])
    assert 'runtime_tag="a \\"b\\""' in text
    sample = re.compile(r'[a-z_0-9]+\{([a-z_]+="([^"\\\n]|\\.)*",?)*\} [-0-9.einf+]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in text.splitlines())
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names >= {
        "execution_errors_total",
        "execution_status_total",
        "execution_latency_seconds",
        "instance_info",
        "neuron_runtime_memory_used_bytes",
        "neuron_runtime_vcpu_usage_ratio",
        "neuroncore_utilization_ratio",
        "neuroncore_memory_usage_tensors",
        "system_memory_total_bytes",
        "system_memory_used_bytes",
        "system_swap_total_bytes",
        "system_swap_used_bytes",
        "hardware_ecc_events_total",
        "system_vcpu_count",
        "system_vcpu_usage_ratio",
    }
    assert re.search(r'^neuroncore_utilization_ratio\{.*neuroncore="3".*\} 0.25$', text, re.MULTILINE)
    assert re.search(r'^execution_status_total\{.*status_type="completed".*\} 40.0$', text, re.MULTILINE)


def test_who_died_is_seen_for_a_while(place):
    place.mkdir()
    (place / f"{NOBODY}.json").write_text(json.dumps(said(pid=NOBODY, updated=0.0)))
    (place / "7.json").write_text("{}")
    (place / "8.json").write_text("\0")
    (state,) = status_file.states(place)
    assert state.gone
    assert "killed" in report(seen(state.record, gone=True))["neuron_runtime_data"][0]["error"]
    assert "killed" in monitor_text.top([report(seen(state.record, gone=True))], {NOBODY: state})
    status_file.sweep(place)
    assert status_file.states(place) == []


def beacon_of(**fields):
    return status_file.StatusFile(lambda timed: {**said(**fields), "pid": os.getpid()})


def test_a_beacon_leaves_nothing_behind_unless_something_failed(place):
    beacon = beacon_of()
    beacon.renew(now=True)
    beacon.renew()  # too soon
    assert [state.gone for state in status_file.states(place)] == [False]
    beacon.end()
    assert status_file.states(place) == []
    beacon = beacon_of(errors={}, outcomes={})
    beacon.renew(now=True)
    beacon.failed(NumericsError("a NaN", code="TRN700"))
    beacon.failed(CollectiveError("late", code="TRN273"))
    assert beacon.errors == {"numerical": 1, "runtime": 1}
    assert beacon.outcomes == {"completed_with_num_err": 1, "timed_out": 1}
    beacon.end()
    assert len(status_file.states(place)) == 1


def test_a_place_that_cannot_be_written_stops_no_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for told in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "off"):
        monkeypatch.setenv(status_file.PLACE, told)
        beacon = beacon_of()
        beacon.renew(now=True)
        beacon.end()


def test_times_are_simulated_when_somebody_looks(place):
    asked = []
    beacon = status_file.StatusFile(lambda timed: asked.append(timed) or said())
    beacon.renew(now=True)
    status_file.look(place)
    beacon.renew(now=True)
    beacon.end()
    assert asked == [False, True]


def test_what_a_session_says(monkeypatch):
    monkeypatch.delenv("NEURON_PROCESS_TAG", raising=False)
    session = Session(chips.target("trn1.2xlarge"))
    routines = tuple(SimpleNamespace(scratch_bytes=size) for size in (3, 5))
    tensors = tuple(SimpleNamespace(kind=kind, nbytes=2) for kind in ("input", "output", "constant", "temp"))
    program = Program("step", "trn1", routines, tensors, (), (), (), hbm_bytes=10)
    executable = SimpleNamespace(
        name="step", key="k", program=program, metadata={"model_flops": 7}, timeline=SimpleNamespace(total=5_000_000)
    )
    found = status_file.record(session, {"k": executable}, {"k": 2}, timed=True)
    assert found["memory"] == {"constants": 2, "model_shared_scratchpad": 15, "tensors": 4}
    assert found["executions"] == [{"name": "step", "key": "k", "calls": 2, "latency_s": 5e-6, "flops": 7}]
    assert (found["rank"], found["logical"]) == (0, 1)


@pytest.mark.parametrize(
    "arguments", [["--period", "0"], ["--samples", "0"], ["--prometheus", "--port", "70000"]], ids=str
)
def test_requests_that_cannot_be_are_refused(place, capsys, arguments):
    assert main(["monitor", *arguments]) == 2
    assert "TRN569" in capsys.readouterr().err


def test_watching_what_is_switched_off_is_refused(monkeypatch, capsys):
    monkeypatch.setenv(status_file.PLACE, "off")
    assert main(["monitor"]) == 2
    assert "TRN553" in capsys.readouterr().err


def test_the_commands_of_the_page(place, capsys):
    place.mkdir()
    (place / f"{os.getpid()}.json").write_text(json.dumps(said()))
    assert main(["monitor"]) == 0
    page = capsys.readouterr().out
    assert "train.py" in page
    assert "2 ms" in page
    assert main(["monitor", "--json", "--samples", "2", "--period", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["neuron_runtime_data"][0]["pid"] for line in lines] == [os.getpid()] * 2
    assert main(["monitor", "--prometheus"]) == 0
    assert "neuroncore_utilization_ratio{" in capsys.readouterr().out
    assert parsed(["monitor", "--top", "--period", "1"]).top


def test_metrics_are_served(place):
    import http.server

    status_file.look(place)
    (place / f"{os.getpid()}.json").write_text(json.dumps(said()))
    with http.server.HTTPServer(("127.0.0.1", 0), handler(place)) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"hardware_ecc_events_total" in answer.read()
        thread.join()


def damaged_records():
    """A record with each field gone, or something else; in places within it, too."""
    others = (None, -1, 1e400, 10**400, "x", "\x1b[2J", [], {}, [None], True, [[]], float("nan"), 1 << 70)

    def changed(value):
        yield from others
        if isinstance(value, dict):
            for key in value:
                yield {k: v for k, v in value.items() if k != key}
                yield from ({**value, key: each} for each in changed(value[key]))
        if isinstance(value, list):
            yield from ([each] for item in value for each in changed(item))

    yield from changed(said(script="\x1b]0;gone\x07", tag="\x1b[2J"))


def test_no_damaged_record_ends_a_run_or_the_monitor(place):
    place.mkdir()
    path, count = place / f"{os.getpid()}.json", 0
    for record in damaged_records():
        path.write_text(json.dumps(record))
        beacon = beacon_of()  # sweeps
        for state in status_file.states(place):
            count += 1
            now = seen(state.record)
            found = monitor.reports(now, MonitorSnapshot())
            text = monitor_text.top(found, {state.pid: state}) + monitor_text.prometheus(found)
            assert "\x1b" not in text
            json.dumps(monitor.reports(now, now))
        beacon.end()
    assert count > 20


@pytest.mark.parametrize("what", ["link", "FIFO", "loop", "folder", "sparse", "deep"])
def test_no_hostile_file_ends_a_run_or_the_monitor(place, tmp_path, capsys, what):
    victim = tmp_path / "victim"
    victim.write_text(json.dumps(said(updated=0.0, birth=1)))
    place.mkdir(mode=0o700)
    for path in (place / "1234.json", place / "watched"):
        if what == "FIFO":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        elif what in ("link", "loop"):
            path.symlink_to(victim if what == "link" else path)
        else:
            path.write_bytes(b"[" * 200_000)
            os.truncate(path, 200 << 30) if what == "sparse" else None
    before = victim.stat()
    beacon_of().end()
    assert status_file.states(place) == []
    main(["monitor"])
    assert "Traceback" not in capsys.readouterr().err
    after = victim.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_the_folder_of_another_is_left_alone(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "theirs").mkdir()
    place.symlink_to(tmp_path / "theirs")
    assert main(["monitor"]) == 2
    assert "TRN568" in capsys.readouterr().err
    place.unlink()
    place.mkdir()
    (place / f"{os.getpid()}.json").write_text(json.dumps(said()))
    monkeypatch.setattr("trnlab.runtime.live_records.user", lambda: 4711)
    assert status_file.states(place) == []
    assert main(["monitor"]) == 2
    assert "TRN568" in capsys.readouterr().err
    assert list((tmp_path / "theirs").iterdir()) == []


def test_who_asks_by_another_name_or_does_not_ask_is_not_answered(place, monkeypatch, capfd):
    import socket
    import struct

    monkeypatch.setattr("trnlab.cli.monitor.IDLE_S", 0.3)
    status_file.look(place)
    with Server(("127.0.0.1", 0), handler(place)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()

        def asked(host):
            with socket.create_connection(server.server_address, timeout=60) as client:
                client.sendall(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                return client.makefile("rb").read().split(b"\r\n")[0]

        for host in ("127.0.0.1", "localhost:8008", f"127.0.0.1:{server.server_port}"):
            assert b" 200 " in asked(host)
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost:x"):
            assert b" 403 " in asked(host)
        before = threading.active_count()
        halves = [socket.create_connection(server.server_address, timeout=60) for _ in range(100)]
        for half in halves:
            with contextlib.suppress(OSError):
                half.sendall(b"GET /")
        assert threading.active_count() < before + 60
        for half in halves:
            with contextlib.suppress(ConnectionError):
                assert half.recv(10) == b""  # cut off, each
            half.close()
        gone = socket.create_connection(server.server_address)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        gone.close()
        assert b" 200 " in asked("localhost")
        server.shutdown()
        thread.join()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.torch
def test_a_run_is_seen_by_another_process(tmp_path, place):
    """A kernel looks at what is said of it after it ran: what it says is what a monitor reads."""
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, json, torch\n"
        "from trnlab.runtime import status_file, session\n"
        "x = torch.ones(4, 4)\n"
        "f = torch.compile(lambda x: x @ x, backend='neuron')\n"
        "f(x.to('neuron'))\n"  # compiles: however long that takes, who looks looks now
        "status_file.look(status_file.folder())\n"
        "f(x.to('neuron'))\n"
        "session.current().run.beacon.renew(now=True)\n"
        "print(subprocess.run([sys.executable, '-m', 'trnlab.cli.main', 'monitor', '--json', '--samples', '1'],\n"
        "                     text=True, capture_output=True, check=True).stdout)\n"
    )
    command = [
        sys.executable,
        "-m",
        "trnlab.cli.main",
        "run",
        "--target",
        "trn1.2xlarge",
        "--no-cache",
        "--out",
        str(tmp_path / "run"),
        str(script),
    ]
    ended = processes.run(command, timeout=300, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    line = next(line for line in ended.stdout.splitlines() if line.startswith('{"neuron_runtime_data"'))
    stats = json.loads(line)["neuron_runtime_data"][0]["report"]["execution_stats"]
    assert stats["execution_summary"]["completed"] == 2
    assert stats["latency_stats"]["device_latency"]["p50"] > 0
    assert list(place.glob("[0-9]*.json")) == []
