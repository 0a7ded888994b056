"""The text of HTML and PDF files."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hf_efficient.errors import DataError, cause
from hf_efficient.facts.environment import missing_package

MOST_HTML: Final = 5_000_000
"""Characters of a page: trafilatura's time grows with the square of its paragraphs (2.3: 0.4 s for 10,000, 5 s for
40,000)."""


def needed(module: str) -> Any:
    """A package of an extra; ``MissingPackageError`` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_package(error.name) or error from error


def text_of_html(page: str) -> str:
    """The main text, without menus, comments and footers; empty where there is none."""
    return needed("trafilatura").extract(page, include_comments=False) or ""


def _html(path: Path) -> str:
    decode = needed("trafilatura.utils").decode_file  # by the page's own declaration, else by its bytes
    page = decode(path.read_bytes())
    if len(page) > MOST_HTML:
        size = f"is a page of {len(page):,} characters, and at most {MOST_HTML:,} are read as HTML"
        raise DataError(f"{path}: {size}. Split it, or save its text as .txt.")
    return text_of_html(page)


def _pdf(path: Path) -> str:
    pypdf = needed("pypdf")
    try:
        return "\n\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except (pypdf.errors.PyPdfError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not readable as PDF: {cause(error)}. Take the file away.") from error


EXTRACTORS: dict[str, Callable[[Path], str]] = {
    ".html": _html, ".htm": _html, ".pdf": _pdf,
}  # fmt: skip
