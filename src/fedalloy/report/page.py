"""What all pages share: the templates, the style sheet, and one script that may run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# Characters that must not be on a page: control characters, and those that change the direction of text.
UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff]"
)


def script() -> str:
    """The script of all pages, `report.js`."""
    return files("fedalloy.report").joinpath("report.js").read_text(encoding="utf-8")


def policy() -> str:
    """The Content-Security-Policy of all pages: this script may run and no other, and nothing may be requested."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def written(package: str, template: str, *, looks: Mapping[str, str] | None = None, **values: Any) -> str:
    """A page from a template of a package. `looks` gives methods in tables the colours that they have in charts."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("fedalloy.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The script is ours, and is written as it is, since its digest is in the policy.
    environment.globals |= {"script": Markup(script()), "policy": policy(), "looks": dict(looks or {})}
    return UNFIT.sub("?", environment.get_template(template).render(**values))
