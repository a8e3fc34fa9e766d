"""Save figures as files or as inline SVG; the same figure always gives the same bytes."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec
from xml.etree import ElementTree

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedalloy.base.files import write_atomically
from fedalloy.errors import UsageError

# Text stays text (small, sharp, selectable); ids come from content and not from a random draw.
SAVING: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "fedalloy", "pdf.fonttype": 42}
UNFIT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")  # characters that XML does not have
# A dollar sign in a name is a dollar sign, also where matplotlib makes a label only when it draws.
PLAIN: dict[Any, Any] = {"text.parse_math": False}
NO_DATE: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


P = ParamSpec("P")


def plain_text(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw text literally, without parsing formulas."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(PLAIN):
            return draw(*args, **kwargs)

    return drawn


def to_svg(figure: Figure, *, label: str = "", ids: str = "") -> str:
    """Draw a figure as one `<svg>` element for a page, with `label` for screen readers.

    Every id begins with `ids` (by default a digest of the drawing), so that several figures on a page do not clash.

    >>> figure = Figure(figsize=(2, 1))
    >>> to_svg(figure, label="nothing").startswith('<svg ')
    True
    >>> to_svg(figure, ids="a") == to_svg(figure, ids="a")
    True
    """
    drawn = _render(figure, "svg")
    prefix = f"{ids or 'f' + hashlib.blake2b(drawn, digest_size=4).hexdigest()}-"
    root = ElementTree.fromstring(drawn)
    for parent in root.iter():
        for child in list(parent):
            # matplotlib's <style> would reach every element of the page, and its <metadata> says nothing.
            if _plain(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _plain(element.tag)
        element.attrib = {_plain(key): _own(_plain(key), value, prefix) for key, value in element.attrib.items()}
    for defs in [child for child in root if child.tag == "defs" and len(child) == 0]:
        root.remove(defs)
    width, height = (inches * 96 for inches in figure.get_size_inches())
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    root.attrib |= {"style": "stroke-linejoin: round; stroke-linecap: butt"}
    root.attrib |= {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    return ElementTree.tostring(root, encoding="unicode")


def save(figure: Figure, path: str | Path) -> Path:
    """Save a figure as PNG, PDF or SVG, whichever the file's name ends with."""
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in NO_DATE:
        raise UsageError(f"a picture cannot be saved as '{path.name}'; end its name with .png, .pdf or .svg")
    write_atomically(path, _render(figure, kind))
    return path


def _render(figure: Figure, kind: str) -> bytes:
    if figure.canvas is None:
        FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    with matplotlib.rc_context({**SAVING, **PLAIN}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may have characters that the font lacks
        figure.savefig(buffer, format=kind, metadata=NO_DATE[kind], dpi=200 if kind == "png" else "figure")
    return UNFIT.sub(b"?", buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _plain(name: str) -> str:
    """A tag or attribute without its namespace: inside HTML, SVG needs none (and `href` has replaced `xlink:href`)."""
    return name.rpartition("}")[2]


def _own(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return prefix + value
    if key == "href" and value.startswith("#"):
        return f"#{prefix}{value[1:]}"
    return value.replace("url(#", f"url(#{prefix}")
