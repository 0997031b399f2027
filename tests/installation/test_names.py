# SPDX-License-Identifier: Apache-2.0
"""What a reader meets under one name is one thing."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src/trnlab"


def public_classes(root):
    """Where each class without a leading underscore is defined: name to places."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def test_no_two_public_classes_share_a_name():
    found = public_classes(ROOT)
    assert len(found) > 900
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared, "give each the name of what it is, so that a name tells which class is meant"


def test_classes_that_share_a_name_are_found(tmp_path):
    """In one file, in two, and within a function; not those with an underscore."""
    (tmp_path / "one.py").write_text("class Plan: ...\nclass _Own: ...\ndef f():\n    class Plan: ...\n")
    (tmp_path / "two.py").write_text("class Plan: ...\nclass _Own: ...\n")
    assert public_classes(tmp_path) == {"Plan": ["one.py:1", "one.py:4", "two.py:1"]}
