"""How Sphinx builds the site. `make docs` reads the pages where they are, so that links also work on a code host."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from docutils.transforms import Transform
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import fedalloy

project = "fedalloy"
copyright = "the fedalloy authors"
release = version = fedalloy.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "*.md", "results/*.md", "bench/*.md", "chaos/*.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "results/*/**"]
suppress_warnings = ["myst.header"]  # pages that begin at a lower level read well on their own

default_role = "literal"  # docstrings write names in single backquotes
autodoc_typehints = "none"  # signatures of one line; mypy checks the types
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
highlight_language = "none"  # a block without a language is commands
smartquotes = False
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"fedalloy {version}"
html_additional_pages = {"index": "front.html"}  # so that the folder can be opened as it is
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["site"]
html_css_files = ["site.css"]
templates_path = ["site"]

LINKED = ("README", "bench/RESULTS", "chaos/", "docs/readings/", "docs/reproduction/", "results/flower")
ANCHOR = re.compile(r'<a id="([^"]+)">')


class AnchorsOfPages(Transform):
    """Let links find what a page marks by `<a id="...">`, which a code host understands as it is."""

    default_priority = 100

    def apply(self) -> None:
        """Tell MyST about the marks."""
        slugs = self.document.myst_slugs
        for raw in self.document.findall(nodes.raw):
            for name in ANCHOR.findall(raw.astext()):
                slugs.setdefault(name, (raw.line or 0, name, name))


class FoldersOfTheRepository(Transform):
    """A link to a folder is for readers on a code host; in the site, it is its text."""

    default_priority = 900

    def apply(self) -> None:
        """Replace such links."""
        here = Path(self.document["source"]).parent
        for link in list(self.document.findall(pending_xref)):
            if link.get("reftype") == "myst" and (here / link["reftarget"]).is_dir():
                link.replace_self(link.children)


def as_written(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Docstrings are plain text with code in backquotes: a star in them is a star."""
    example = False
    for i, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            parts = line.split("`")
            parts[::2] = [re.sub(r"[*|]", r"\\\g<0>", part) for part in parts[::2]]
            lines[i] = "`".join(parts)


def reached_by_links(app: Sphinx, docname: str, _: object) -> None:
    """Pages that the menu leaves out are no mistake."""
    if docname.startswith(LINKED):
        app.env.metadata[docname]["orphan"] = True


def setup(app: Sphinx) -> None:
    """Add what is above."""
    app.connect("source-read", reached_by_links)
    app.connect("autodoc-process-docstring", as_written)
    app.add_transform(AnchorsOfPages)
    app.add_transform(FoldersOfTheRepository)
