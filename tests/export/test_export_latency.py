"""How fast a model answers: the definitions by hand, each engine behind its door, and what cannot be measured."""

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from export_models import model_folder

from hf_efficient.cli.app import main
from hf_efficient.errors import ModelError, SetupError
from hf_efficient.export import latency as module
from hf_efficient.export.export import export_run, parse_form
from hf_efficient.export.latency import Answer, Load, latency
from hf_efficient.records.trained_model import LatencyPoint, Percentiles
from hf_efficient.reporting.html.compare_page import latency_page
from hf_efficient.reporting.trained_model import latency_notes, latency_table


class Server(BaseHTTPRequestHandler):
    """Streams "a " as often as it is asked to; "broken" ends in the middle of a line, "mute" sends no token."""

    asked: ClassVar[list[dict]] = []

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "first"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        self.send_response(404 if body["model"] == "none" else 200)
        self.end_headers()
        for _ in range(0 if body["model"] in ("none", "mute") else body["max_tokens"]):
            self.say({"choices": [{"text": "a "}]})
            time.sleep(0.002)
        if body["model"] == "broken":
            self.wfile.write(b'data: {"choices": [{"te\n')
            return
        self.say({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_):
        pass


def code(argv):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return ended.value.code


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_figures_of_a_point_by_hand(monkeypatch):
    """Two requests a round, 0.5 s each round: first tokens at 0.1 and 0.2 s, five tokens until 0.5 s."""
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock) * 0.5)
    point = LatencyPoint("http://here/v1", "server", 8, 5, 2)
    answers = [Answer(0.1, 0.5, 5, 8), Answer(0.2, 0.5, 5, 8)]
    found = module._point(point, lambda *asked: answers, Load(seconds=2.0, price_usd_per_hour=3.6))
    assert found.requests == 6  # rounds begin at 0.5, 1.0 and 1.5 s; at 2.0 s the time is over
    assert found.first_token == pytest.approx(Percentiles(0.15, 0.2, 0.2))
    assert found.between_tokens == pytest.approx(Percentiles((0.1 + 0.075) / 2, 0.1, 0.1))
    assert found.whole == Percentiles(0.5, 0.5, 0.5)
    assert found.tokens_per_second == pytest.approx(30 / 2.0)
    assert found.usd_per_million == pytest.approx(0.001 * 2.0 / 30 * 1e6)
    assert found.joules_per_million is None


def test_the_knee_is_where_doubling_stops_to_pay():
    rates = {1: 10.0, 2: 19.0, 4: 30.0, 8: 31.0}
    points = [LatencyPoint("m", "server", 8, 4, many, tokens_per_second=rate) for many, rate in rates.items()]
    module._mark_knees(points)
    assert [one.at_a_time for one in points if one.is_knee] == [4]
    still_rising = points[:3]
    for one in points:
        one.is_knee = False
    module._mark_knees(still_rising)
    assert not any(one.is_knee for one in still_rising)


def test_a_server_is_asked_for_exact_answers_and_its_counts_are_reported(url):
    found = latency([url], Load((16,), (6,), (1, 2), seconds=0.05))
    one, two = found.points
    assert {(one["max_tokens"], one["model"], one["ignore_eos"]) for one in Server.asked} == {(6, "first", True)}
    assert all(len(one["prompt"].split()) == 16 for one in Server.asked)
    assert (one.at_a_time, two.at_a_time, one.answered_tokens, one.read_tokens) == (1, 2, 6, 9)
    assert two.requests % 2 == 0
    assert one.first_token.p50 < one.whole.p50
    assert one.peak_bytes is None  # of another process
    assert f"{url} reads the prompts as 9 tokens, not 16" in list(latency_notes(found))
    assert "at a time" in latency_page(found, "hf-efficient latency")


@pytest.mark.parametrize(
    ("model", "said"),
    [("none", "answers 404"), ("mute", "answered without a token"), ("broken", "stopped in the middle")],
)
def test_a_server_that_fails_is_named_with_what_it_did(url, model, said):
    with pytest.raises(ModelError, match=said):
        latency([url], Load((4,), (2,), (1,), seconds=0.01, server_model=model))


def test_a_server_that_is_not_there():
    with pytest.raises(ModelError, match=r"does not answer: .*Start the server"):
        latency(["http://127.0.0.1:9/v1"], Load())


def test_a_model_in_a_process_of_its_own(tmp_path, capfd):
    folder = model_folder(tmp_path / "base")
    page = tmp_path / "page.html"
    asked = ["--prompt-tokens", "8", "--new-tokens", "4", "--at-a-time", "2", "--seconds", "0.1", "--html", str(page)]
    capfd.readouterr()
    assert code(["latency", str(folder), *asked, "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["points"]
    assert (found["engine"], found["at_a_time"], found["answered_tokens"], found["failed"]) == (
        "transformers",
        2,
        4,
        "",
    )
    assert found["first_token"][0] <= found["whole"][0]
    assert found["requests"] >= 6
    assert found["peak_bytes"] > 100 * 2**20  # Python with torch
    assert "How fast models answer" in page.read_text()


def test_a_prompt_longer_than_the_positions_fails_alone(tmp_path):
    model_folder(tmp_path / "base")
    load = Load((8, 10**6), (2,), (1,), seconds=0.01)
    good, bad = module._points(str(tmp_path / "base"), load)
    assert not good.failed
    assert bad.failed.endswith("positions, fewer than 1,000,000 + 2 tokens.")
    found = module.Latency(1, "0", {}, {}, [good, bad])
    table = latency_table(found)
    assert [row[table.headings.index("")] for row in table.rows] == ["", "failed"]
    assert any(bad.failed[:-1] in line for line in latency_notes(found))


def test_the_moments_are_those_of_generate(tmp_path):
    """The first put is the prompt's: without it the first token would come at once."""
    model_folder(tmp_path / "base")
    _, engine = module._engine(str(tmp_path / "base"), Load())
    first, second = engine(8, 5, 2)
    assert first == second
    assert 0 < first.first < first.last
    assert first.tokens == 5


def test_a_gguf_file_is_asked_through_llama_cpp(tmp_path):
    pytest.importorskip("cyllama")
    model_folder(tmp_path / "base")
    export_run(str(tmp_path / "base"), parse_form("gguf:F16"), tmp_path / "out", questions=["Hi"])
    (path,) = (tmp_path / "out").glob("*.gguf")
    _, engine = module._engine(str(path), Load())
    (answer,) = engine(8, 5, 1)
    assert 0 < answer.first < answer.last
    assert (answer.tokens, answer.prompt_tokens) == (5, 8)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--at-a-time", "0"], "--at-a-time: takes whole numbers from 1"),
        (["--prompt-tokens", "many"], "--prompt-tokens: 'many' is no list"),
        (["--seconds", "-1"], "--seconds: -1 is no time"),
        (["--price", "nan"], "--price: nan is no price"),
    ],
)
def test_wrong_flags(flags, said, capsys):
    assert code(["latency", "an/owner", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["latency", "chat", "export", "merge"])
def test_what_is_not_here_is_refused_at_once(command, capsys):
    assert code([command, "nowhere"]) == 2
    assert re.search("nowhere (is no folder or file here|does not exist)", capsys.readouterr().err)


def test_a_gguf_file_without_llama_cpp_or_without_the_file(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"model\.gguf does not exist\. Write the path of a GGUF file"):
        module._engine(str(tmp_path / "model.gguf"), Load())
    (tmp_path / "model.gguf").touch()
    for name in ("cyllama", "cyllama.llama", "cyllama.llama.llama_cpp"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SetupError, match="pip install cyllama"):
        module._engine(str(tmp_path / "model.gguf"), Load())
