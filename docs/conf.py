"""How Sphinx makes the site: `make docs` reads the pages where they are, from the project's root."""

from __future__ import annotations

import fedalloy

project = "fedalloy"
author = "the fedalloy authors"
copyright = f"2026, {author}"
release = version = fedalloy.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "*.md", "results/README.md", "bench/README.md", "results/*.md", "chaos/*.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "results/runs", "node_modules", "fedalloy-demo*"]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
