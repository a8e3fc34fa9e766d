"""A page as a list of blocks, written as Markdown or as HTML: headings, paragraphs, lists, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from fedalloy.report.svg import to_svg
from fedalloy.report.tables import Table


@dataclass(frozen=True)
class Heading:
    """A heading; links point to its anchor."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backquotes, **bold** between stars, and links as [text](target)."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of short texts; folded away if it has a summary."""

    texts: Sequence[str]
    summary: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with its file name, without ending, and what it shows in words; None if its data is not here.

    The words are for those who do not see it; a page has them in a heading, too.
    """

    figure: Figure | None
    name: str
    words: str


Block = Heading | Text | Items | Picture | Table


def markdown(blocks: Sequence[Block], pictures: str = "pictures") -> tuple[str, dict[str, str]]:
    """The page as Markdown, and its pictures as SVG by file name.

    >>> markdown([Heading("One", 1), Text("Two."), Items(["three"])])
    ('# One\\n\\nTwo.\\n\\n- three\\n', {})
    """
    parts: list[str] = []
    files: dict[str, str] = {}
    for block in blocks:
        match block:
            case Heading():
                anchor = f'<a id="{block.anchor}"></a>\n\n' if block.anchor else ""
                parts.append(f"{anchor}{'#' * block.level} {block.text}")
            case Text():
                parts.append(block.text)
            case Items():
                whole = "\n".join(f"- {text}" for text in block.texts)
                folded = f"<details>\n<summary>{escape(block.summary)}</summary>\n\n{whole}\n\n</details>"
                parts.append(folded if block.summary else whole)
            case Picture():
                files |= {f"{block.name}.svg": to_svg(block.figure)} if block.figure is not None else {}
                parts.append(f"![{block.words}]({pictures}/{block.name}.svg)")
            case Table():
                parts.append(block.markdown().rstrip())
    return "\n\n".join(parts) + "\n", files


def html(blocks: Sequence[Block], title: str) -> str:
    """The page as one self-contained HTML file.

    >>> "<h1>One &amp; two</h1>" in html([Heading("One & two", 1)], "a page")
    True
    """
    parts = []
    for block in blocks:
        match block:
            case Heading():
                anchor = f' id="{escape(block.anchor)}"' if block.anchor else ""
                parts.append(f"<h{block.level}{anchor}>{_inline(block.text)}</h{block.level}>")
            case Text():
                parts.append(f"<p>{_inline(block.text)}</p>")
            case Items():
                lines = "".join(f"<li>{_inline(text)}</li>" for text in block.texts)
                whole = f"<ul>{lines}</ul>"
                told = f"<details><summary>{_inline(block.summary)}</summary>{whole}</details>"
                parts.append(told if block.summary else whole)
            case Picture():
                picture = (
                    to_svg(block.figure) if block.figure is not None else "<p>Its data is not on this computer.</p>"
                )
                parts.append(f'<figure role="img" aria-label="{escape(block.words)}">{picture}</figure>')
            case Table():
                parts.append(f'<div class="scroll" tabindex="0">{block.html()}</div>')
    return PAGE.format(title=escape(title), body="\n".join(parts))


def _inline(text: str) -> str:
    """Text with `code`, **bold** and [links](target) as HTML."""
    safe = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', safe)


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{
  color-scheme: light dark;
  --ink: #1f2328; --page: #ffffff; --quiet: #59636e; --line: #d5dae0; --link: #0b5cad;
}}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e9ed; --page: #14171b; --quiet: #a3adb8; --line: #323a43; --link: #7ab8ff; }}
}}
body {{ margin: 0 auto; max-width: 1140px; padding: 24px; color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }}
h1 {{ line-height: 1.2; }} h2 {{ margin-top: 48px; }} h3 {{ margin-top: 32px; }}
a {{ color: var(--link); }}
th a {{ font-weight: normal; text-decoration: none; }} th a:hover {{ text-decoration: underline; }}
code {{ font-size: 0.9em; overflow-wrap: anywhere; }}
.scroll {{ overflow-x: auto; margin: 12px 0; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; padding: 4px 0; }}
th, td {{ padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }}
th.word, td.word {{ text-align: left; }} td:not(.word) {{ white-space: nowrap; }}
th[scope=colgroup], .first {{ padding-left: 16px; }}
p.note {{ margin: 4px 0; color: var(--quiet); font-size: 14px; }}
figure {{ margin: 16px 0; }} figure svg {{ max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }}
summary {{ color: var(--quiet); }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
