"""Communication between ranks that no computation covers, and the wrong way to spread a model over them."""

from dataclasses import replace

from hf_efficient.diagnosis.case import MATTERS, Case, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.memory import PERSISTENT, MemoryRoom, category_bytes, memory_room
from hf_efficient.records.findings import Finding, Gain, Remedy
from hf_efficient.text import share, size

_TRACE = "profile/trace.rank0: communication"
_MEMORY = "run.json: memory.categories"


def _strategy_of(case: Case) -> str:
    """Of several ranks, as the recipe says, else by the arguments: ``deepspeed`` by a configuration of its own, whose
    stage is not known here; ``ddp`` is what they do by themselves."""
    named = (case.recipe or {}).get("distributed.strategy")
    if named in ("ddp", "zero1", "zero2", "zero3", "fsdp2"):
        return str(named)
    if case.argument("deepspeed"):
        return "deepspeed"
    return "fsdp2" if case.argument("fsdp") else "ddp"


@rule()
def exposed_communication(case: Case) -> Verdict:
    """In a tenth of the traced time or more the device only communicates; the wait for a slow rank is part of it."""
    if case.ranks < 2:
        return None
    device = case.traced_device
    if device is None:
        if not case.on_cuda:
            return None  # gloo's threads leave no events
        return abstains("how much communication the computation covers is not known", "profile.trace")
    found = device.communication
    if found is None or found.exposed_share < 0.1:
        return None
    lost = found.exposed_share * case.account.time.training_seconds
    strategy, remedies = _strategy_of(case), []
    if strategy in ("ddp", "zero1"):
        overrides = {"train.gradient_accumulation_steps": 2 * case.accumulated}
        costs = "a step holds twice the examples: half as many steps, and the learning rate may have to grow"
        gain = case.gain(lost / 2, "gradients are averaged half as often; each time as long as now")
        remedies.append(Remedy("accumulate twice as many micro-batches", overrides, costs, gain))
    if strategy in ("zero3", "fsdp2"):
        what = f"keep the weights whole on each rank, where they fit: zero2 or ddp in place of {strategy}"
        remedies.append(Remedy(what))
    trained, parameters = (case.settings("model").get(name) for name in ("trainable_parameters", "parameters"))
    if strategy in ("ddp", "zero1", "zero2") and trained and trained == parameters:
        remedies.append(Remedy("average the gradients in bfloat16 (DDP's bf16_compress_hook): half of the bytes"))
    return finding(
        f"in {share(found.exposed_share)} of the time the device communicates, and computes nothing",
        [
            ("communication that nothing covers", found.exposed_seconds, "seconds", _TRACE),
            ("of the traced time", found.exposed_share, "share", _TRACE),
            ("communication, of which is covered", found.overlap_share, "share", _TRACE),
        ],
        remedies,
        case.cost(lost),
    )


@rule(needs_steps=False)
def sharding(case: Case) -> Verdict:
    """Weights are sharded and would fit whole; or nothing is sharded, and the memory is nine tenths full."""
    strategy = _strategy_of(case)
    if case.ranks < 2 or not case.on_cuda or strategy in ("deepspeed", "zero1", "zero2"):
        return None
    room, persistent = memory_room(case), category_bytes(case, *PERSISTENT)
    peak = case.account.memory.device_peak_allocated_bytes
    if room is None or persistent is None or peak is None:
        return abstains("what the memory is used for is not known", "EfficientTrainerMixin")
    if strategy == "ddp":
        return _hardly_fits(case, room)
    whole = peak + (case.ranks - 1) * persistent
    return None if whole > 0.85 * room.device_bytes else _would_fit(case, strategy, room, persistent, whole)


def _would_fit(case: Case, strategy: str, room: MemoryRoom, persistent: int, whole: int) -> Finding:
    device = case.traced_device
    exposed = None if device is None or device.communication is None else device.communication.exposed_share
    evidence = [
        ("weights, gradients and optimizer state of a rank", persistent, "bytes", _MEMORY),
        ("peak with all of them whole (estimate)", whole, "bytes", f"{_MEMORY}, times the ranks"),
        ("that tensors may take of a device (estimate)", room.device_bytes, "bytes", "settings.device"),
        ("time in which only communication runs", exposed, "share", "profile/trace.rank0"),
    ]
    overrides = {"distributed.strategy": "ddp"} if case.recipe is not None else {}
    remedy = Remedy(f"let each rank hold the whole model: ddp in place of {strategy}", overrides, "more memory")
    lost = None
    if exposed is not None:
        lost = exposed * case.account.time.training_seconds * _spared(case)
        basis = "exposed communication, in proportion to the bytes that are sent"
        remedy = replace(remedy, gain=case.gain(lost, basis))
    return finding(
        f"the model is spread over {case.ranks} ranks ({strategy}), and would fit whole: "
        f"{size(whole)} of {size(room.device_bytes)}",
        evidence,
        [remedy],
        case.cost(lost),
        severity="warning" if lost is not None and case.share(lost) >= MATTERS else "info",
        confidence="likely",
        explains=["exposed_communication"],
    )


def _spared(case: Case) -> float:
    """Of the bytes sent, those that DDP does not send (``estimate/sharding.py``). Spread: the weights W gathered
    twice, the gradients of the T trained values scattered once; DDP: these gradients twice. Hand-worked: all trained: 1
    - 2 / 3 = 1 / 3; one of 100: 1 - 2 / 201 = 0.99."""
    model = case.settings("model")
    trained, parameters = model.get("trainable_parameters"), model.get("parameters")
    return 1 / 3 if not trained or not parameters else float(1 - 2 * trained / (2 * parameters + trained))


def _hardly_fits(case: Case, room: MemoryRoom) -> Finding | None:
    """ZeRO-2 spreads gradients and optimizer state, FSDP2 the weights as well (arXiv 1910.02054)."""
    if room.share < 0.9:
        return None
    ranks = case.ranks
    spread = {
        "zero2": category_bytes(case, "gradients", "optimizer_state") or 0,
        "fsdp2": category_bytes(case, *PERSISTENT) or 0,
    }
    freed = {name: held * (ranks - 1) // ranks for name, held in spread.items()}
    best = next((name for name in freed if freed[name] >= 0.2 * room.held_bytes), None)
    if best is None:
        return None
    gain = Gain(None, None, freed[best], None, f"{ranks - 1} of {ranks} parts of what is spread")
    what = f"spread them over the ranks: {best}"
    if case.recipe is not None:
        what += f" (hf-efficient plan RECIPE distributed.strategy={best} shows what that takes)"
    return finding(
        f"each of {ranks} ranks holds all of the model, and its memory is {share(room.share)} full",
        [
            ("memory taken at the peak", room.held_bytes, "bytes", room.source),
            ("freed of it", freed[best], "bytes", _MEMORY),
        ],
        [Remedy(what, costs="more communication", gain=gain)],
        case.cost(held_bytes=freed[best]),
        severity="info",
    )
