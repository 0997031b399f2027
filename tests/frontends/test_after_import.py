# SPDX-License-Identifier: Apache-2.0
"""What waits for a script's imports is called once, behind the module, however the import comes about."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from trnlab.frontends.after_import import when_imported

NAME = "waited_for_by_this_test"


@pytest.fixture
def called(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    values = []
    forget = when_imported(NAME, lambda module: values.append(module.VALUE))
    yield values
    forget()
    sys.modules.pop(NAME, None)


def test_it_is_called_once_behind_the_import(called):
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert called == [3]


def test_who_asks_where_the_module_lies_does_not_import_it(called):
    """`import tensorflow` asks so for Keras."""
    assert importlib.util.find_spec(NAME).origin.endswith(f"{NAME}.py")
    assert called == []
    importlib.import_module(NAME)
    assert called == [3]


def test_what_is_there_is_told_at_once(called):
    importlib.import_module(NAME)
    when_imported(NAME, lambda module: called.append(module.VALUE))
    assert called == [3, 3]


def test_nothing_is_told_once_it_is_forgotten(called, tmp_path):
    (tmp_path / "other_of_this_test.py").write_text("VALUE = 5\n")
    when_imported("other_of_this_test", lambda module: called.append(module.VALUE))()
    importlib.import_module("other_of_this_test")
    assert called == []
