"""The pipeline, run over rows of text."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from made_curation import Curated, Heard, lines, recipe_of

from hf_efficient.curation.pipeline import prepare


@pytest.fixture
def curate(tmp_path: Path, tiny_tokenizer: Any) -> Callable[..., Curated]:
    """``curate(["a text", ...], stage={...})`` runs the pipeline over one source; ``sources`` names several."""

    def run(texts: list[str] | None = None, sources: list[dict] | None = None, data: dict | None = None, **stages: Any):
        named = [{"path": str(lines(tmp_path / "rows.jsonl", texts or []))}] if sources is None else sources
        heard = Heard()
        top = {name: stages.pop(name) for name in ("model", "objective") if name in stages}
        made = recipe_of(tmp_path, named, stages, **top, **(data or {}))
        return Curated(prepare(made, tiny_tokenizer, heard), heard)

    return run


class ModelServer:
    """A server of OpenAI's form on loopback. ``answer`` gets a prompt and gives a text, or (status, body as it is)."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.asked: list[dict] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[str], Any] = lambda prompt: "5"

    @property
    def prompts(self) -> list[str]:
        return [one["messages"][0]["content"] for one in self.asked]


class _Handler(BaseHTTPRequestHandler):
    state: ModelServer

    def do_GET(self) -> None:
        self.say(200, json.dumps({"data": [{"id": "served"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.state.asked.append(body)
        self.state.keys.append(self.headers.get("Authorization"))
        found = self.state.answer(body["messages"][0]["content"])
        if isinstance(found, tuple):
            return self.say(*found)
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        self.say(200, json.dumps({"choices": [{"message": {"content": found}}], "usage": usage}))

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    from hf_efficient.curation import served

    monkeypatch.setattr(served, "_WAITS", (0.0,))
    handler = type("Handler", (_Handler,), {})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.state = ModelServer(http.server_port)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield handler.state
    http.shutdown()
    thread.join()
    http.server_close()
