# SPDX-License-Identifier: Apache-2.0
"""`trnlab fabric` as a user meets it: pictures, the vendor's table and JSON, refusals in one line."""

from __future__ import annotations

import json

import pytest

from trnlab import chips
from trnlab.cli import main as command


def trnlab(capsys, *arguments):
    status = command.main(["fabric", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("target", [*chips.TARGETS, "4xtrn2u.48xlarge", "3xtrn1.32xlarge"])
def test_every_network_can_be_shown(capsys, target):
    status, out, _ = trnlab(capsys, "show", "--target", target)
    assert status == 0
    assert out.startswith(f"{target}: ")
    assert "GB/s each" in out


def test_the_table_has_the_columns_of_the_vendor_and_the_json_too(capsys, tmp_path):
    report = tmp_path / "out.json"
    status, out, _ = trnlab(
        capsys,
        "test",
        "allr",
        "--target",
        "trn1.32xlarge",
        "-r",
        "32",
        "-b",
        "1k",
        "-e",
        "1M",
        "-f",
        "32",
        "-d",
        "fp32",
        "--show-algorithm",
        "--report-to-json-file",
        str(report),
    )
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == [
        "size(B)",
        "count(elems)",
        "type",
        "time:avg(us)",
        "algbw(GB/s)",
        "busbw(GB/s)",
        "algorithm",
    ]
    assert [int(line.split()[0]) for line in lines[1:4]] == [1024, 32768, 1048576]
    rows = json.loads(report.read_text())["results"]
    for row in rows:
        assert row["algbw(GB/s)"] == pytest.approx(row["size(B)"] / row["time:avg(us)"] * 1e6 / 2**30, rel=0.01)
        assert row["busbw(GB/s)"] == pytest.approx(row["algbw(GB/s)"] * 2 * 31 / 32)
        assert row["count(elems)"] * 4 == row["size(B)"]


@pytest.mark.parametrize("operation", ["allr", "allg", "redsct", "alltoall", "sendrecv", "permute"])
@pytest.mark.parametrize("dtype", ["uint8", "bf16", "fp8", "int32"])
def test_every_operation_is_right_on_data(capsys, operation, dtype):
    status, out, _ = trnlab(
        capsys,
        "test",
        operation,
        "--target",
        "2xtrn1.32xlarge",
        "-r",
        "16",
        "-b",
        "3",
        "-e",
        "3000",
        "-f",
        "10",
        "-c",
        "-d",
        dtype,
    )
    assert status == 0, out
    assert "differ" not in out


def test_groups_and_pairs_come_from_files_of_the_vendors_format(capsys, tmp_path):
    groups = tmp_path / "groups.json"
    for rows in ([[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3]]):  # all ranks, and some of them
        groups.write_text(json.dumps({"replica_groups": [rows]}))
        status, _, _ = trnlab(
            capsys,
            "test",
            "allg",
            "--target",
            "trn1.32xlarge",
            "-r",
            "8",
            "-c",
            "--custom-replica-groups",
            str(groups),
            "-b",
            "64",
            "-e",
            "64",
        )
        assert status == 0
    pairs = tmp_path / "pairs.json"
    pairs.write_text(json.dumps({"src_target_pairs": [[[0, 1], [1, 0]]]}))
    status, _, _ = trnlab(
        capsys,
        "test",
        "permute",
        "--target",
        "trn1.32xlarge",
        "-r",
        "8",
        "-c",
        "--custom-src-target-pairs",
        str(pairs),
        "-b",
        "64",
        "-e",
        "64",
    )
    assert status == 0
    for text in ("", "{}", '{"replica_groups": [[[0, 0]]]}', '{"replica_groups": [[[0, 99]]]}', "[1]"):
        groups.write_text(text)
        status, _, err = trnlab(
            capsys, "test", "allg", "--target", "trn1.32xlarge", "-r", "8", "--custom-replica-groups", str(groups)
        )
        assert status == 2
        assert "TRN186" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("test", "allx", "--target", "trn1.32xlarge"), "TRN185"),
        (("test", "allr", "--target", "trn1.32xlarge", "-d", "fp64"), "TRN185"),
        (("test", "allr", "--target", "trn1.32xlarge", "-b", "2x"), "TRN185"),
        (("test", "allr", "--target", "trn1.32xlarge", "-f", "1"), "TRN569"),
        (("test", "allr", "--target", "trn1.32xlarge", "-r", "33"), "TRN180"),
        (("test", "allr", "--target", "p5.48xlarge"), "TRN101"),
        (("test", "allr", "--target", "2xinf2.24xlarge"), "TRN182"),
    ],
)
def test_bad_requests_take_one_line(capsys, arguments, code):
    status, _, err = trnlab(capsys, *arguments)
    assert status == 2
    assert code in err
    assert len(err.strip().splitlines()) == 1
