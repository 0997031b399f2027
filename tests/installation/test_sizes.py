# SPDX-License-Identifier: Apache-2.0
"""Files are short enough to be read at once, fields are explained where they stand, and docstrings are sentences."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src/trnlab"
MOST = 500  # lines of a file
LONGER = {  # files, the lines that they may have, and why they are not divided
    "graph/builder.py": (560, "one class, a method for each op"),
    "lang/tensor.py": (610, "one class: all that a kernel may do with a tensor"),
    "view/scratch.py": (530, "one class that stands for the functions of `os`"),
}
GLOSSARIES = ("sim/",)  # where records still explain their fields in one paragraph


def lines_of(path):
    return path.read_text().count("\n")


def test_no_file_is_longer_than_it_may_be():
    sizes = {str(path.relative_to(ROOT)): lines_of(path) for path in ROOT.rglob("*.py")}
    assert len(sizes) > 1000
    long = {name: size for name, size in sizes.items() if size > LONGER.get(name, (MOST, ""))[0]}
    assert not long, "divide them along natural lines, or say in LONGER why not"
    assert all(sizes[name] > MOST for name in LONGER), "take out of LONGER what is short by now"


def records(tree):
    """Data classes and named tuples: name, docstring, names of fields."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not ast.get_docstring(node):
            continue
        made_by = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
        if any("dataclass" in each or "NamedTuple" in each for each in made_by):
            fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
            yield node.name, ast.get_docstring(node), fields


def explained(docstring, fields):
    """Fields that a docstring explains as `name: ...`."""
    return [name for name in fields if re.search(rf"(?<![\w.]){name}`?(?:, [\w, ]+)?: ", docstring)]


def test_fields_are_explained_beside_fields():
    """A comment at a field, not a paragraph that lists them."""
    found = []
    for path in ROOT.rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(GLOSSARIES):
            found += [
                f"{name}: {record}"
                for record, docstring, fields in records(ast.parse(path.read_text()))
                if len(explained(docstring, fields)) > 1
            ]
    assert not found


@pytest.mark.parametrize(
    ("docstring", "expected"), [("A. one: a. two: b.", 2), ("A. one, two: both.", 2), ("One.", 0)]
)
def test_a_list_of_fields_is_found(docstring, expected):
    source = f'@dataclass\nclass A:\n    """{docstring}"""\n    one: int\n    two: int\n'
    ((_, text, fields),) = records(ast.parse(source))
    assert len(explained(text, fields)) == expected


def test_docstrings_are_sentences():
    """None begins with "Of", which says something only beside the name of its file."""
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            says = ast.get_docstring(node) if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else None
            if says and says.startswith("Of "):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not found


def test_no_folder_holds_more_than_a_reader_can_see():
    """At most 25 modules side by side."""
    folders = {path.parent for path in ROOT.rglob("*.py")}
    wide = {str(each.relative_to(ROOT)): count for each in folders if (count := len(list(each.glob("*.py")))) > 25}
    assert not wide
