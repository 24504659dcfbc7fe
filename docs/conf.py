"""Settings of Sphinx, which makes a site of this folder: `make docs` writes it to `build/site`.

The pages are Markdown that reads well on GitHub too. So fences of mermaid are drawn, headings have the
anchors that GitHub gives them, and the order of pages is in `_toc.yml` instead of directives in a
page. The texts of the reference are docstrings: `sphinx.ext.autodoc` imports polyrhythm and reads them.
"""

import inspect
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
    "sphinxcontrib.mermaid",
]
smartquotes_action = "D"  # dashes, as those that Sphinx puts between a name and its meaning

# -- pages -----------------------------------------------------------------------------------------
external_toc_path = "_toc.yml"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# -- the reference ---------------------------------------------------------------------------------
default_role = "py:obj"
add_module_names = False
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
_LINK_OUT = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
"""A link of a page to a file or a folder of another folder."""


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
    return None


def links_to_the_source(app: Sphinx, page: str, source: list[str]) -> None:
    """Change links that leave this folder: the site has a copy of a file of the source, and only the
    text of a link to a folder, such as `../examples/`."""
    here = Path(app.env.doc2path(page)).parent

    def shown(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(app.srcdir):
            return link[0]
        return link[1] if target.is_dir() else f"[{link[1]}](path:{link[2]})"

    source[0] = _LINK_OUT.sub(shown, source[0])


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", short_signature)
    app.connect("source-read", links_to_the_source)
