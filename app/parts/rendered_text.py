"""Renders Markdown, code and formulas of recorded texts as HTML that can neither run nor load anything.

markdown-it-py reads the Markdown, with HTML disabled; Pygments colours code; latex2mathml converts formulas to MathML,
of which only known attributes are taken. A link shows its address, and no image is loaded.
"""

import html
import re
from functools import cache
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from logs_ui.app.parts import safe_text

# A formula is limited in length: else each sign that opens one would be searched for its end through the whole text.
_FORMULA = re.compile(
    r"\\\((?P<a>.{1,2000}?)\\\)|\$(?P<b>[^\s$](?:[^$\n]{0,2000}[^\s$])?)\$(?!\d)"
    r"|\\\[(?P<c>.{1,2000}?)\\\]|\$\$(?P<d>.{1,2000}?)\$\$",
    re.DOTALL,
)
_DEFINING = re.compile(r"\\(def|let|\w*newcommand)\b")  # a macro may expand without end
_ATTRIBUTE = re.compile(r"display(style)?|scriptlevel|mathvariant|stretchy|fence|accent|columnalign|linethickness")


_COLOURED = {
    "bash", "css", "diff", "go", "html", "java", "javascript", "js", "json", "py", "python", "rust", "sh", "sql",
    "toml", "typescript", "xml", "yaml",
}  # fmt: skip
"""Languages whose code is coloured: the time of the others' lexers grows with the square of some texts."""

_MOST_CODE = 2_000  # characters that are coloured of one block
_MOST_COLUMNS = 60  # each row of a table gets as many cells as its head


def rendered(text: str) -> Markup:
    """Render a text as Markdown. What cannot be rendered is shown as it was written."""
    if any(line.count("|") > _MOST_COLUMNS for line in text.splitlines()):
        return safe_text.block(text)
    try:
        return safe_text.with_labels(_reader().render(text))
    except RecursionError:
        return safe_text.block(text)


@cache
def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _code})
    reader.enable(["table", "strikethrough"])
    reader.validateLink = lambda url: url.startswith(("https://", "http://"))  # type: ignore[method-assign]
    reader.inline.ruler.before("escape", "formula", _read_formula)
    reader.add_render_rule("formula", lambda _, tokens, i, *__: _formula(tokens[i].content, tokens[i].markup))
    reader.add_render_rule("image", lambda _, tokens, i, *__: _address(tokens[i].attrGet("src"), tokens[i].content))
    for cell in ("th", "td"):  # its own rule writes a style, which the policy of the pages refuses
        reader.add_render_rule(f"{cell}_open", lambda *_, tag=cell: f"<{tag}>")
    reader.add_render_rule("link_open", lambda _, tokens, i, *__: _link(tokens[i].attrGet("href")))
    return reader


def _code(source: str, name: str, _: str) -> str:
    """Colour code by classes. Pygments escapes it. The fence's own words are not repeated."""
    markup = str(escape(source))
    if name in _COLOURED and len(source) <= _MOST_CODE:
        markup = str(highlight(source, get_lexer_by_name(name), HtmlFormatter(nowrap=True, classprefix="code-")))
    return f"<pre><code>{markup}</code></pre>"


def _read_formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - as markdown-it calls it
    match = _FORMULA.match(state.src, state.pos)
    if match and not silent:
        token = state.push("formula", "", 0)
        token.content, token.markup = match[match.lastgroup or 0], "inline" if match["a"] or match["b"] else "block"
    state.pos = match.end() if match else state.pos
    return match is not None


def _formula(source: str, display: str) -> str:
    """Convert LaTeX to MathML; what cannot be converted is shown as code."""
    if not _DEFINING.search(source):
        try:
            return _mathml(Converter(display=display).convert_to_element(source))
        except Exception:  # noqa: BLE001, S110 - wrong LaTeX raises errors of any kind
            pass
    return f"<code>{escape(source)}</code>"


def _mathml(element: Element) -> str:
    """Write an element. Its texts contain entities, and its attributes may contain texts of the LaTeX."""
    parts = [element.text, *(piece for child in element for piece in (child, child.tail))]
    inside = "".join(
        _mathml(part) if isinstance(part, Element) else escape(html.unescape(part or "")) for part in parts
    )
    attributes = [f' {name}="{escape(value)}"' for name, value in element.attrib.items() if _ATTRIBUTE.fullmatch(name)]
    return f"<{element.tag}{''.join(attributes)}>{inside}</{element.tag}>"


def _link(address: Any) -> str:
    """Open a link, and show its address at the beginning."""
    return f'<a href="{escape(address)}" rel="noreferrer noopener" target="_blank">{_address(address, "")}'


def _address(address: Any, text: str) -> str:
    return f'{escape(text)} <span class="address">{escape(address)}</span> '
