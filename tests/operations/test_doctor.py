# SPDX-License-Identifier: Apache-2.0
"""Hosts of many kinds, and what is said of each: never nothing of what is wrong, and nothing of what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trnlab.cli.main import main
from trnlab.estimate.result import MemoryReport, Report, TargetResult
from trnlab.fabric.cluster import parse
from trnlab.findings import Finding, UserLine
from trnlab.operations import doctor, releases, settings
from trnlab.operations.doctor import ERROR, OK, WARNING

SDK = {
    "torch": "2.9.1",
    "torch-neuronx": "2.9.0.2.13.26312",
    "neuronx-cc": "2.24.8799.0+abc",
    "libneuronxla": "2.2.16408.0",
}
GIB = 1 << 30


@pytest.fixture
def site(tmp_path):
    """A real instance of two, on which everything is as it should be."""
    return doctor.HostFacts(
        parse("2xtrn1.32xlarge"),
        64,
        {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"},
        SDK,
        "3.11",
        (6, 8),
        devices=16,
        adapters=8,
        limits={"memlock": -1, "nofile": 65536},
        free={str(tmp_path): 900 * GIB},
        year=2026,
        synchronised=True,
        memory={"HugePages_Total": 2560},
        cache=str(tmp_path / "cache"),
        checkpoints=str(tmp_path / "kept"),
    )


def of(site, code, severity=ERROR):
    return [each for each in doctor.examine(site) if (each.code, each.severity) == (code, severity)]


def test_a_host_that_is_well_has_findings_of_one_kind(site):
    found = doctor.examine(site)
    assert {each.severity for each in found} == {OK}, found
    assert not doctor.failed(found)
    assert "fit for the job: 0 errors, 0 warnings" in doctor.text(site, found)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"torch": "2.8.0"}, "for another torch"),
        ({"neuronx-cc": "2.27.5334.0"}, "different releases"),
        ({"jax-neuronx": "0.7.0.1.0.8181", "jax": "0.10.0"}, "for another jax"),
    ],
)
def test_packages_that_do_not_fit(site, changed, told):
    (finding,) = of(replace(site, packages={**SDK, **changed}), "TRN559")
    assert told in finding.what
    assert finding.remedy


def test_packages_and_python(site):
    (finding,) = of(replace(site, python="3.13"), "TRN559")
    assert finding.limit == "3.10, 3.11, 3.12"
    assert of(replace(site, packages={"torch": "2.9.0"}), "TRN559")  # devices, and nothing for them
    (unknown,) = of(replace(site, packages={**SDK, "nki": "9.9"}), "TRN559", WARNING)
    assert "no release that is known" in unknown.what
    assert list(releases.misfits({"jax": "0.8.1", "jax-neuronx": "0.10.0.1.0.11459"}, "3.12")) == []


def test_the_table_of_releases_is_whole():
    assert {package.name for package in releases.known()} <= set(releases.NAMES)
    assert all(package.sdk and package.version and package.pythons for package in releases.known())


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("NEURON_RT_NUM_CORES", "32", "33"),
        ("NEURON_RT_VISIBLE_CORES", "0-3,8", "30-32"),
        ("NEURON_RT_VISIBLE_CORES", "31", "3-1"),
        ("NEURON_RT_LOG_LEVEL", "info", "LOUD"),
        ("NEURON_RT_EXEC_TIMEOUT", "600", "10m"),
        ("NEURON_RT_VALIDATE_HASH", "TRUE", "yes"),
        ("NEURON_RT_ROOT_COMM_ID", "10.0.0.5:44000", "10.0.0.5"),
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1", "on"),
        ("NEURON_LOGICAL_NC_CONFIG", "2", "3"),
        ("NEURON_CC_FLAGS", "--model-type=transformer -O1", "-O7"),
        ("NEURON_CC_FLAGS", "--cache_dir='/a b'", "--cache_dir='/a b"),
        ("NEURON_CC_FLAGS", "", "--model-type=llama"),
        ("FI_PROVIDER", "efa", "tcp"),
        ("FI_EFA_USE_DEVICE_RDMA", "1", "0"),
    ],
)
def test_variables(site, name, good, bad):
    assert of(replace(site, environment={**site.environment, name: good}), "TRN560") == []
    (finding,) = of(replace(site, environment={**site.environment, name: bad}), "TRN560")
    assert finding.where == name
    assert finding.limit
    assert finding.remedy


def test_variables_that_several_instances_need(site):
    missing = {each.where for each in of(replace(site, environment={}), "TRN560")}
    assert missing == set(settings.MULTI)
    simulated = replace(site, environment={}, devices=0)
    assert of(simulated, "TRN560") == []
    assert len(of(simulated, "TRN560", WARNING)) == 2
    (finding,) = of(replace(site, kernel=(5, 10)), "TRN560")
    assert finding.where == "FI_EFA_FORK_SAFE"
    assert of(replace(site, environment={}, cluster=parse("trn1.32xlarge"), ranks=32), "TRN560") == []


def test_variables_that_are_doubtful(site):
    told = {
        "NEURON_RT_NUM_CORE": "1",
        "NEURONCORE_GROUP_SIZES": "1",
        "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "8",
        "NEURON_RT_NUM_CORES": "1",
        "NEURON_RT_VISIBLE_CORES": "0",
        "NEURON_RT_LOG_LEVEL_TDRV": "DEBUG",
        "NEURON_RT_DBG_SOMETHING": "1",
    }
    found = of(replace(site, environment={**site.environment, **told}), "TRN560", WARNING)
    assert sorted(each.where for each in found) == [
        "NEURONCORE_GROUP_SIZES",
        "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
        "NEURON_RT_NUM_CORE",
        "NEURON_RT_NUM_CORES",
    ]


def test_devices_limits_clock_and_pages(site):
    assert of(replace(site, devices=15), "TRN567")
    assert of(replace(site, adapters=0), "TRN567")
    assert of(replace(site, limits={"memlock": 1 << 23, "nofile": -1}), "TRN562")
    (finding,) = of(replace(site, limits={"memlock": -1, "nofile": 100}), "TRN562")
    assert finding.limit.startswith("128")
    assert of(replace(site, limits={}), "TRN562") == []
    assert of(replace(site, year=1970), "TRN563")
    assert of(replace(site, synchronised=False), "TRN563", WARNING)
    assert of(replace(site, synchronised=None), "TRN563", OK)
    assert of(replace(site, memory={}), "TRN564", WARNING)


def test_places_that_cannot_be_used(site, tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = of(replace(site, cache=str(tmp_path / "file")), "TRN565")
    assert finding.where == str(tmp_path / "file")
    assert of(replace(site, checkpoints="nonsense://bucket"), "TRN565")
    assert list((tmp_path / "kept").glob("doctor*")) == []


def report(parameters, *, fits=True, findings=()):
    memory = MemoryReport(parameters=parameters, state=2 * parameters)
    target = TargetResult("trn1.32xlarge", capacity=16 * GIB, fits=fits, memory=memory)
    return Report("train.py", findings=list(findings), targets=[target])


def test_what_a_script_needs(site):
    told = replace(site, report=report(GIB), ranks=2)
    assert doctor.checkpoint_bytes(told) == 6 * GIB
    assert "a checkpoint takes 6 GiB" in of(told, "TRN566", OK)[0].what
    full = {**told.free, told.checkpoints: 23 * GIB}
    (finding,) = of(replace(told, free=full), "TRN561")
    assert finding.limit == "24 GiB: 4 of 6 GiB"
    assert of(replace(told, free={**full, told.checkpoints: 24 * GIB}), "TRN561") == []
    assert of(replace(told, report=report(GIB, fits=False)), "TRN566")
    refused = Finding("TRN204", "error", "a size is computed", UserLine("train.py", 3), do="give it")
    assert "train.py:3" in of(replace(told, report=report(GIB, findings=[refused])), "TRN566")[0].where


def test_little_room(site, tmp_path):
    assert of(replace(site, free={str(tmp_path): GIB}), "TRN561", WARNING)


def test_the_command_of_this_host(tmp_path, monkeypatch, capsys):
    """This host may be real or not, and be in whatever state: only that it is examined is tested."""
    monkeypatch.chdir(tmp_path)
    for name in (*settings.JUDGES, *settings.OLD):
        monkeypatch.delenv(name, raising=False)
    command = ["doctor", "--target", "trn1.2xlarge", "--cache", str(tmp_path / "cache")]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["target"], told["ranks"], told["failed"]) == (
        "trnlab.doctor",
        "trn1.2xlarge",
        1,
        False,
    )
    assert {f"TRN{number}" for number in (559, 560, 561, 562, 563, 564, 565, 567)} <= {
        f["code"] for f in told["findings"]
    }
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "soon")
    assert main(command) == 1
    page = capsys.readouterr().out
    assert "not fit for the job: 1 errors" in page
    assert "ERROR  TRN560" in page
    monkeypatch.delenv("TRNLAB_TARGET", raising=False)
    assert main(["doctor"]) == 2


def test_the_command_asks_what_the_script_needs(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("trnlab.cli.doctor.examined", lambda args: asked.append(args) or report(GIB))
    command = [
        "doctor",
        "--target",
        "4xtrn2.48xlarge",
        "--cache",
        str(tmp_path / "cache"),
        "--checkpoint",
        str(tmp_path / "kept"),
        "train.py",
        "--lr",
        "1",
    ]
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 50))
    main(command)
    assert "a checkpoint takes 768 GiB" in capsys.readouterr().out  # of 256 ranks
    assert asked[0].arguments == ["--lr", "1"]
