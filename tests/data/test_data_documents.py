"""HTML, PDF and plain text files as sources."""

import pytest
from made_data import refused

from hf_efficient.data.sources import open_source
from hf_efficient.recipe.schema import SourceSection

LONG = "The mayor opened the new bridge over the river on Sunday, and many people came to see it before the rain began."


def rows(path):
    return [row.value for row in open_source(SourceSection(path=str(path)), "data.train.0").rows()]


def pdf(text: str) -> bytes:
    """The smallest file with one page of text."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 900 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    parts = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page]
    parts += [b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream), font]
    body, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, start=1):
        places.append(len(body))
        body += b"%d 0 obj%s endobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer<</Root 1 0 R/Size 6>>\nstartxref\n%d\n%%%%EOF" % len(body)
    return body + b"xref\n0 6\n0000000000 65535 f \n" + table + end


def test_a_folder_of_documents_has_a_row_for_each(tmp_path):
    (tmp_path / "a.txt").write_text("plain", encoding="utf-8")
    (tmp_path / "b.html").write_text(f"<html><body><nav>Menu</nav><p>{LONG}</p></body></html>", encoding="utf-8")
    (tmp_path / "c.pdf").write_bytes(pdf("from paper"))
    assert rows(tmp_path) == [{"text": "plain"}, {"text": LONG}, {"text": "from paper"}]


def test_beside_rows_documents_are_left_alone(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "row"}\n', encoding="utf-8")
    (tmp_path / "README.md").write_text("about", encoding="utf-8")
    assert rows(tmp_path) == [{"text": "row"}]


@pytest.mark.parametrize(
    ("name", "held", "told"),
    [
        ("a.txt", b"\x89PNG\x00\x00", "a.txt: not UTF-8 (byte 0x89 at offset 0). Save the file as UTF-8."),
        ("a.txt", b"MZ\x00\x01", "a.txt: holds zero bytes, so it is no text. Take the file away."),
        ("a.pdf", b"no such thing", "a.pdf: is not readable as PDF: "),
        ("a.html", b"<p>" + b"word " * 1_000_001, "is a page of 5,000,008 characters, and at most 5,000,000 are read"),
    ],
)
def test_what_is_no_document_is_named(tmp_path, name, held, told):
    (tmp_path / name).write_bytes(held)
    assert told in refused(rows, tmp_path / name)
