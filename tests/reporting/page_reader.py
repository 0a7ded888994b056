"""A page as what it holds: elements, texts, and the data of its figures; and what a terminal shows, by line."""

import json
import re
from html.parser import HTMLParser

from rich.console import Console


def printed(*parts, width=80):
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        data = [text for text in self.scripts if text.startswith('{"figures"')]
        self.data = json.loads(data[0])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        if self._inside and self._inside[-1] == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.texts.append(data.strip())

    @property
    def said(self) -> str:
        return re.sub(r"\s+", " ", " ".join(text for text in self.texts if text))

    def ids(self, tag=None):
        return [attributes["id"] for name, attributes in self.elements if "id" in attributes and tag in (None, name)]


def check_whole(page):
    """Unique ids, data for every figure, links that lead somewhere, a caption for each of at least two tables."""
    assert len(page.ids()) == len(set(page.ids()))
    assert sorted(page.data["figures"]) == sorted(page.ids("figure"))
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert all(link.removeprefix("#") in page.ids() for link in links)
    tables = [tag for tag, _ in page.elements if tag in ("table", "caption")]
    assert tables.count("table") == tables.count("caption") > 1
