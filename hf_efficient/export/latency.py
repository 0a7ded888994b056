"""How fast models answer: on transformers, llama.cpp, or a server of OpenAI's form; each in a process of its own."""

import functools
import itertools
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_efficient.curation.served import answered, first_model
from hf_efficient.errors import HfEfficientError, ModelError, SetupError, first_line
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.statistics import percentile
from hf_efficient.export.llama_cpp import greedy, load_llama_cpp
from hf_efficient.facts.environment import describe_environment, quieten_libraries
from hf_efficient.launch.trained import find_source, load_source
from hf_efficient.recording import meters
from hf_efficient.records.trained_model import LATENCY_SCHEMA_VERSION, Latency, LatencyPoint, Percentiles, rising
from hf_efficient.records.tuning import LEAST_DOUBLING
from hf_efficient.version import __version__

_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Load:
    """What is asked of each model. ``seconds``: of timed requests at each point, three rounds at least."""

    prompt_tokens: tuple[int, ...] = (128,)
    new_tokens: tuple[int, ...] = (64,)
    at_a_time: tuple[int, ...] = (1, 2, 4)
    seconds: float = 5.0
    price_usd_per_hour: float | None = None
    server_model: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for flag in ("prompt_tokens", "new_tokens", "at_a_time"):
            if not getattr(self, flag) or min(getattr(self, flag)) < 1:
                raise SetupError(f"--{flag.replace('_', '-')}: takes whole numbers from 1. Write 1,2,4, for instance.")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise SetupError(f"--seconds: {self.seconds:g} is no time. Write the seconds of a point, such as 5.")
        if self.price_usd_per_hour is not None and not 0 <= self.price_usd_per_hour < math.inf:
            raise SetupError(f"--price: {self.price_usd_per_hour:g} is no price. Write dollars per hour.")


class Answer(NamedTuple):
    """Of one request. ``first`` and ``last``: seconds from the request to these tokens."""

    first: float
    last: float
    tokens: int
    prompt_tokens: int


Engine = Callable[[int, int, int], list[Answer]]
"""Prompt tokens, new tokens and requests at a time in; an answer for each request out."""


def latency(models: Sequence[str], load: Load, began: Callable[[str], None] = lambda name: None) -> Latency:
    """``models``: runs, folders, hub names, GGUF files, URLs of servers such as ``http://localhost:8000/v1``. A point
    that fails says why; raises ``HfEfficientError`` where none of a model's points could be measured."""
    points: list[LatencyPoint] = []
    for model in models:
        began(model)
        found = _points(model, load) if _is_server(model) else _in_a_process(model, load)
        if all(one.failed for one in found):
            raise ModelError(f"{model}: {found[0].failed}")
        points += found
    _mark_knees(points)
    settings = {"seconds": load.seconds, "price_usd_per_hour": load.price_usd_per_hour}
    return Latency(LATENCY_SCHEMA_VERSION, __version__, describe_environment(), settings, points)


def _is_server(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def _in_a_process(model: str, load: Load) -> list[LatencyPoint]:
    """So that the peak of memory is this model's own. The libraries are quietened before this module imports them."""
    quiet = functools.partial(quieten_libraries, debug=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), quiet) as pool:
        try:
            return pool.submit(_measured, model, load).result()
        except BrokenProcessPool as error:
            raise ModelError(f"{model}: its process was killed, perhaps for want of memory. Measure less.") from error


def _measured(model: str, load: Load) -> list[LatencyPoint]:
    """In the model's own process, out of which not every error can be carried."""
    try:
        return _points(model, load)
    except HfEfficientError as error:
        raise ModelError(str(error)) from error


def _points(model: str, load: Load) -> list[LatencyPoint]:
    name, engine = _engine(model, load)
    points = itertools.product(load.prompt_tokens, load.new_tokens, sorted(load.at_a_time))
    return [_point(LatencyPoint(model, name, *point), engine, load) for point in points]


def _point(point: LatencyPoint, engine: Engine, load: Load) -> LatencyPoint:
    asked = (point.prompt_tokens, point.new_tokens, point.at_a_time)
    is_here = not _is_server(point.model)
    read: list[meters.EnergyMeter] = []
    if is_here:
        gpus, _ = meters.gpu_meters(meters.cuda_devices(meters.current_device()))
        read = [one for one in (*meters.host_meters(), *gpus) if one.unit == "joules"]
    try:
        engine(*asked)  # kernels are chosen and memory is taken
        answers: list[Answer] = []
        before, began = [one.read() for one in read], time.perf_counter()
        while (spent := time.perf_counter() - began) < load.seconds or len(answers) < _FEWEST_ROUNDS * point.at_a_time:
            answers += engine(*asked)
        used = [one.read() - start for one, start in zip(read, before, strict=True)]
    except (HfEfficientError, torch.OutOfMemoryError, MemoryError) as error:
        point.failed = first_line(error)
        return point
    _add_figures(point, answers, spent)
    tokens = sum(one.tokens for one in answers)
    if is_here:
        point.peak_bytes = meters.device_peaks().get("device_peak_allocated_bytes") or meters.peak_rss_bytes()
        point.joules_per_million = sum(used) / tokens * 1e6 if used else None
        point.energy_is_estimated = any(one.source == "estimate" for one in read)
    usd = cost_usd(spent, load.price_usd_per_hour)
    point.usd_per_million = None if usd is None else usd / tokens * 1e6
    return point


def _add_figures(point: LatencyPoint, answers: Sequence[Answer], seconds: float) -> None:
    """By GuideLLM's definitions: a request's time between tokens is (last - first) / (tokens - 1)."""
    several = [one for one in answers if one.tokens > 1]
    point.requests = len(answers)
    point.answered_tokens = statistics.mean(one.tokens for one in answers)
    point.read_tokens = statistics.mean(one.prompt_tokens for one in answers)
    point.first_token = _percentiles(one.first for one in answers)
    point.whole = _percentiles(one.last for one in answers)
    if several:
        point.between_tokens = _percentiles((one.last - one.first) / (one.tokens - 1) for one in several)
    point.tokens_per_second = sum(one.tokens for one in answers) / seconds


def _percentiles(values: Iterator[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(*(percentile(ordered, part) or 0.0 for part in (0.5, 0.95, 0.99)))


def _mark_knees(points: Sequence[LatencyPoint]) -> None:
    """The last number at a time on the way up whose doubling gives 1.1 times the tokens/s; none on a rising end."""
    for curve in rising(points).values():
        knee = 0
        for place, (low, high) in enumerate(itertools.pairwise(curve), start=1):
            doublings = math.log2(high.at_a_time / low.at_a_time) or 1.0
            gain = (high.tokens_per_second / low.tokens_per_second) ** (1 / doublings)
            knee += knee == place - 1 and gain >= LEAST_DOUBLING
        curve[knee].is_knee = knee < len(curve) - 1


def _engine(model: str, load: Load) -> tuple[str, Engine]:
    if _is_server(model):
        return "server", _server(model.rstrip("/"), load.server_model)
    if Path(model).suffix == ".gguf":
        return "llama.cpp", _llama_cpp(Path(model))
    return "transformers", _transformers(model, load)


class _Moments:
    """transformers' streamer: it is given the prompt, and then each token of all requests."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, tokens: Any) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        pass


def _transformers(target: str, load: Load) -> Engine:
    model, _ = load_source(find_source(target, trust_remote_code=load.trust_remote_code))
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def ask(prompt_tokens: int, new_tokens: int, at_a_time: int) -> list[Answer]:
        _check_room(positions, prompt_tokens, new_tokens)
        ids = torch.randint(10, model.config.get_text_config().vocab_size, (at_a_time, prompt_tokens))
        moments, ids = _Moments(), ids.to(next(model.parameters()).device)
        lengths = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0, **lengths}
        began = time.perf_counter()
        model.generate(ids, streamer=moments, **asked)
        first, last = moments.at[1] - began, moments.at[-1] - began
        return [Answer(first, last, new_tokens, prompt_tokens)] * at_a_time

    return ask


def _llama_cpp(path: Path) -> Engine:
    """Raises ``SetupError``: cyllama is missing; ``ModelError``: llama.cpp refuses the file."""
    if not path.is_file():
        raise ModelError(f"{path} does not exist. Write the path of a GGUF file.")
    llama_cpp = load_llama_cpp(f"{path}: a GGUF file needs")
    try:
        model = llama_cpp.LlamaModel(str(path), llama_cpp.LlamaModelParams())
    except Exception as error:
        raise ModelError(f"{path}: llama.cpp cannot read it: {first_line(error)}.") from error

    def ask(prompt_tokens: int, new_tokens: int, at_a_time: int) -> list[Answer]:
        if at_a_time > 1:
            raise SetupError("llama.cpp is measured here with one request at a time. Give the URL of its server.")
        _check_room(model.n_ctx_train, prompt_tokens, new_tokens)
        room = llama_cpp.LlamaContextParams()
        room.n_ctx = room.n_batch = prompt_tokens + new_tokens + 8
        room.n_threads = room.n_threads_batch = torch.get_num_threads()
        context = llama_cpp.LlamaContext(model, room)
        answer = greedy(llama_cpp, context, random.choices(range(10, model.get_vocab().n_vocab), k=prompt_tokens))
        began = time.perf_counter()
        at = [time.perf_counter() - began for _ in itertools.islice(answer, new_tokens)]
        return [Answer(at[0], at[-1], new_tokens, prompt_tokens)]

    return ask


def _check_room(positions: int | None, prompt_tokens: int, new_tokens: int) -> None:
    if positions is not None and prompt_tokens + new_tokens > positions:
        raise SetupError(
            f"the model has {positions:,} positions, fewer than {prompt_tokens:,} + {new_tokens:,} tokens."
        )


def _server(url: str, named: str | None) -> Engine:
    model = named or first_model(url, "Write --server-model NAME.")

    def one_request(prompt_tokens: int, new_tokens: int) -> Answer:
        prompt = " ".join(random.choices(("one", "two", "red", "blue", "sun", "rain"), k=prompt_tokens))
        body = {"model": model, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        at: list[float] = []
        usage: dict[str, int] = {}
        began = time.perf_counter()
        for chunk in _chunks(f"{url}/completions", body):
            if any(choice.get("text") for choice in chunk.get("choices", ())):
                at.append(time.perf_counter() - began)
            usage = chunk.get("usage") or usage
        if not at:
            raise ModelError(f"{url} answered without a token. Is {model} a model that completes text?")
        return Answer(at[0], at[-1], usage.get("completion_tokens", len(at)), usage.get("prompt_tokens", prompt_tokens))

    def ask(prompt_tokens: int, new_tokens: int, at_a_time: int) -> list[Answer]:
        with ThreadPoolExecutor(at_a_time) as pool:
            return list(pool.map(one_request, [prompt_tokens] * at_a_time, [new_tokens] * at_a_time))

    return ask


def _chunks(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import requests

    with answered("POST", url, json=body, stream=True) as response:
        try:
            for line in response.iter_lines(chunk_size=1):
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    yield json.loads(data)
        except (requests.RequestException, ValueError) as error:
            raise ModelError(f"{url} stopped in the middle of an answer: {first_line(error)}.") from error
