"""Settings of Sphinx, which makes a site of this folder: `make docs` writes it to `build/site`.

The pages are Markdown that reads well on GitHub too. So headings have the anchors that GitHub gives
them, and the order of pages is in `_toc.yml` instead of directives in a page. The texts of the reference
are docstrings: `sphinx.ext.autodoc` imports polyrhythm and reads them.
"""

import inspect
import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import polyrhythm

project = "polyrhythm"
author = "the polyrhythm authors"
release = polyrhythm.__version__
extensions = [
    "myst_parser",
    "sphinx_external_toc",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
smartquotes_action = "D"  # dashes, as those that Sphinx puts between a name and its meaning

# -- pages -----------------------------------------------------------------------------------------
external_toc_path = "_toc.yml"
myst_heading_anchors = 4

# -- the reference ---------------------------------------------------------------------------------
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
python_trailing_comma_in_multi_line_signatures = False

# -- the theme -------------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"polyrhythm {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

MADE = {"Worker", "ConnectedWorker", "Result", "Service", "AttachedOptimizer"}
"""Classes whose objects the package makes, as it makes all errors: users do not call their
constructors."""
LISTED = {"polyrhythm.train", "polyrhythm.serve"}
"""Functions whose options have a page of their own, because they are so many."""
README = Path(__file__).resolve().parents[1] / "README.md"
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
"""A link of a page to a file or a folder, with its text, path and anchor."""


_REFUSED = re.compile(r", \*\*unknown: [~\w.]*Never")
"""The keyword for unknown options, which the function refuses with the nearest known name."""
_ARRAY = re.compile(r"ndarray\[tuple\[[^\]]*\], [~\w.]*dtype\[[^\]]*\]\]")


def short_signature(
    app: Sphinx,
    what: str,
    name: str,
    target: Any,
    options: Any,
    signature: str | None,
    returns: str,
) -> tuple[str, str] | None:
    """Leave out what a signature cannot show well."""
    made = inspect.isclass(target) and (target.__name__ in MADE or what == "exception")
    if signature and made:
        return "", ""
    if name in LISTED:
        return ("(main, **options)" if name.endswith("train") else "(**options)"), returns
    shown = None if signature is None else _REFUSED.sub("", signature)
    return tuple(text and _ARRAY.sub("ndarray", text) for text in (shown, returns))


def keep_first_line(
    app: Sphinx, what: str, name: str, target: Any, options: Any, lines: list[str]
) -> None:
    """Napoleon takes the text before a colon in the first line of a property for its type. It looks
    at the first line only, so let this line be an empty comment."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]


def links_of_page(app: Sphinx, page: str, source: list[str]) -> None:
    here = Path(app.env.doc2path(page)).parent
    source[0] = links_in_site(app, here, here, source[0])


def links_of_included(app: Sphinx, included: Path, page: str, source: list[str]) -> None:
    """The front page of the site includes the README."""
    source[0] = links_in_site(app, app.srcdir.parent, app.srcdir, source[0])


def links_in_site(app: Sphinx, here: Path, shown_in: Path, text: str) -> str:
    """Change links that leave the folder of the pages: the README is the front page, the site has a
    copy of any other file of the source, and it shows only the text of a link to a folder, such as
    `../examples/`. `here`: the folder in which the text lies. `shown_in`: the folder of the page that
    shows it."""

    def changed(link: re.Match[str]) -> str:
        words, target, anchor = link[1], (here / link[2]).resolve(), link[3] or ""
        if not target.exists():
            return link[0]  # this is code, and no link
        if target.is_dir():
            return words
        if target == README:
            target = app.srcdir / "index.md"
        way = os.path.relpath(target, shown_in)
        scheme, anchor = ("", anchor) if target.is_relative_to(app.srcdir) else ("path:", "")
        return f"[{words}]({scheme}{way}{anchor})"

    return _LINK.sub(changed, text)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-process-docstring", keep_first_line, priority=100)  # before napoleon
    app.connect("source-read", links_of_page)
    app.connect("include-read", links_of_included)
