# SPDX-License-Identifier: Apache-2.0
"""What Sphinx is told. Pages are those of the repository, where they lie; `tools.site.pages` adds their order."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import trnlab  # noqa: E402

project = "trnlab"
author = "the authors of trnlab"
version = release = trnlab.__version__
project_copyright = "the authors of trnlab; Apache 2.0"
html_title = f"trnlab {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.site.pages", "tools.site.docstrings", "tools.site.links"]
root_doc = "docs/index"
include_patterns = ["CONTRIBUTING.md", "CHANGELOG.md", "docs/**"]
exclude_patterns = [".*", "src", "tests", "tools", "examples", "runs", "build", "dist"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
pygments_dark_style = "monokai"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]
html_copy_source = False
html_show_sphinx = False
