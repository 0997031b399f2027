# SPDX-License-Identifier: Apache-2.0
"""What reports are made from is heard of once per process, and only while one is made."""

from __future__ import annotations

import sys

from trnlab.estimate import report_cache


def test_reports_of_one_process_share_one_audit_hook(monkeypatch, tmp_path):
    """Python has no way to take one back: a process that makes many reports would slow down with each."""
    added = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr(report_cache, "_EARS", report_cache._Ears())
    for number in range(5):
        with report_cache.ReportCache(tmp_path, [str(number)]) as each:
            each.watch()
    assert len(added) == 1


def test_what_is_read_behind_the_block_is_none_of_the_reports(tmp_path):
    for name in ("before", "within", "behind"):
        (tmp_path / name).write_text("some")
    report = report_cache.ReportCache(tmp_path / "cache" / "checks", ["a command"])
    (tmp_path / "before").read_text()
    with report:
        report.watch()
        (tmp_path / "within").read_text()
        report.put({"says": 1})
    (tmp_path / "behind").read_text()
    again = report_cache.ReportCache(tmp_path / "cache" / "checks", ["a command"])
    for name in ("before", "behind"):
        (tmp_path / name).write_text("other")
        assert again.get() == {"says": 1}
    (tmp_path / "within").write_text("other")
    assert again.get() is None
    report._path.unlink()
    (tmp_path / "behind").read_text()
    report.put({"says": 2})
    (tmp_path / "behind").write_text("another")
    assert again.get() == {"says": 2}


def test_two_reports_at_once_hear_alike(tmp_path):
    (tmp_path / "file").write_text("some")
    first, second = (report_cache.ReportCache(tmp_path / "cache" / "checks", [name]) for name in ("first", "second"))
    with first:
        first.watch()
        with second:
            second.watch()
            (tmp_path / "file").read_text()
        for report in (first, second):
            report.put({"says": 1})
    (tmp_path / "file").write_text("other")
    assert [report.get() for report in (first, second)] == [None, None]
