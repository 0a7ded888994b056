"""Cores that somebody else has or that the run asks for too many of, a GPU that is held back, one that is too large."""

from collections.abc import Iterator
from dataclasses import dataclass

from hf_efficient.diagnosis.case import Case, Row, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.memory import MemoryRoom, memory_room
from hf_efficient.estimate.allocator import CONTEXT_BYTES
from hf_efficient.facts.prices import offers
from hf_efficient.facts.tables import Accelerator, accelerator_of_device, accelerators
from hf_efficient.records.findings import Gain, Remedy
from hf_efficient.text import share

_MUCH_WAIT = 0.10
_EXCESS = 0.5
_HOST = "system.jsonl: host"
_SAMPLED_BY = "a run of some seconds on Linux, with EfficientTrainerMixin"


def _usable_cores(case: Case) -> float | None:
    """Cores that the processes of the run may use: by affinity, and by the quota of their container."""
    cores = case.facts.get("system", {}).get("usable_cpus") or case.settings("host").get("cores")
    return float(cores) if cores else None


def _ranks_here(case: Case) -> int:
    """Ranks that share them; all, where the run did not say."""
    return int(case.facts.get("system", {}).get("ranks_here") or case.ranks)


def cores_of_a_rank(case: Case) -> float | None:
    cores = _usable_cores(case)
    return None if cores is None else cores / _ranks_here(case)


def _threads_of_a_rank(case: Case) -> int:
    """Torch's on a CPU, the one that launches on a GPU."""
    return int(case.settings("host").get("torch_threads") or 1) if case.device_type == "cpu" else 1


def compute_cores(case: Case) -> float:
    threads = float(_threads_of_a_rank(case))
    return min(threads, cores_of_a_rank(case) or threads)


@dataclass(frozen=True)
class CoreWait:
    """How the main thread of rank 0 waited for a core (``share`` of its time), and who wanted the ``cores`` of the run:
    ``others`` processes, its ``own`` threads and loader workers; ``stolen`` ones the host of a virtual machine took."""

    share: float
    others: float
    own: float
    cores: float
    stolen: float

    @property
    def others_share(self) -> float:
        """Of what is wanted beyond the cores, the part of somebody else; the rest is the run's own excess."""
        excess = max(0.0, self.own - self.cores)
        foreign = self.others + self.stolen
        return foreign / (foreign + excess) if foreign > 0 else 0.0


def core_wait(case: Case) -> CoreWait | None:
    """None where the sampler did not read it, or the cores are not known."""
    cores, share = _usable_cores(case), case.host_mean("main_thread_core_wait")
    others = case.host_mean("other_cores")
    if cores is None or share is None or others is None:
        return None
    own = _threads_of_a_rank(case) * _ranks_here(case) + (case.host_mean("children_cores") or 0.0)
    return CoreWait(share, others, own, cores, case.host_mean("stolen_cores") or 0.0)


@rule()
def cpu_contention(case: Case) -> Verdict:
    """For a tenth of the loop or more the main thread waits for a core that other processes have."""
    wait = core_wait(case)
    if wait is None:
        return abstains("who kept the cores busy while the loop ran was not sampled", _SAMPLED_BY)
    lost = wait.share * wait.others_share
    if lost < _MUCH_WAIT or wait.others + wait.stolen < 0.2:
        return None
    who = "other processes" if wait.others >= wait.stolen else "other virtual machines"
    saved = lost * case.loop_seconds
    alone = Remedy(
        "give the run cores of its own: end what else runs, or hold both apart (taskset, a container's cpuset)",
        gain=case.gain(saved, "the time that the main thread waited; threads that wait for each other lose more"),
    )
    passive = Remedy(
        "where the cores must be shared, set OMP_WAIT_POLICY=PASSIVE: torch's threads then sleep while they wait for "
        "each other, and do not hold cores that the others need",
        costs="waking up takes some microseconds per operator",
    )
    return finding(
        f"the training waits for a core in {share(lost)} of its time: {who} keep "
        f"{wait.others + wait.stolen:.1f} cores busy of {wait.cores:g}",
        [*_wait_rows(wait), ("cores taken by the machine's host", wait.stolen, "count", f"{_HOST}.stolen_cores")],
        [alone, passive],
        case.cost(saved),
    )


def _wait_rows(wait: CoreWait) -> list[Row]:
    return [
        ("main thread ready to run, without a core", wait.share, "share", f"{_HOST}.main_thread_core_wait"),
        ("cores busy with other processes", wait.others, "count", f"{_HOST}.other_cores"),
        ("cores that the run may use", wait.cores, "count", "spans.jsonl: system.usable_cpus"),
    ]


@rule()
def cpu_oversubscription(case: Case) -> Verdict:
    """The run's threads, ranks and loader workers want more cores than there are, and its main thread waits for one."""
    wait = core_wait(case)
    if wait is None:
        return abstains("the threads' wait for cores was not sampled", _SAMPLED_BY)
    own = wait.share * (1 - wait.others_share)
    if wait.own < wait.cores + _EXCESS or own < _MUCH_WAIT:
        return None
    threads, ranks = _threads_of_a_rank(case), _ranks_here(case)
    processes = f" in each of {ranks} ranks" if ranks > 1 else ""
    beside = ", beside loader workers," if wait.own > threads * ranks + _EXCESS else ""
    # Other threads get on meanwhile, but all wait for the last; 16 threads on two cores lost a little more than this.
    saved = own * case.loop_seconds
    each = max(1, int(wait.cores // ranks))
    fewer = Remedy(
        f"let torch compute with {each} thread{'s' if each > 1 else ''} per rank: OMP_NUM_THREADS={each}"
        if threads * ranks > wait.cores
        else "load with fewer workers, or let torch compute with fewer threads (OMP_NUM_THREADS)",
        gain=case.gain(saved, f"the {share(own)} of its time that the main thread waits for a core"),
    )
    return finding(
        f"torch computes with {threads} threads{processes}{beside} on {wait.cores:g} cores",
        [
            ("threads of torch", threads, "count", "spans.jsonl: settings.host.torch_threads"),
            ("ranks on the machine", ranks, "count", "spans.jsonl: system.ranks_here"),
            ("cores busy with loader workers", wait.own - threads * ranks, "count", f"{_HOST}.children_cores"),
            *_wait_rows(wait),
        ],
        [fewer],
        case.cost(saved),
        confidence="likely",
    )


@rule(needs_steps=False)
def throttling(case: Case) -> Verdict:
    """NVML names a reason for throttling in a tenth of the readings or more, of any GPU. A power cap is no warning,
    since dense training runs at it; heat, or a brake of the board, is."""
    if not case.on_cuda:
        return None
    system = case.series.system if case.series is not None else None
    if system is None or not system.gpus:
        return abstains("NVML reported nothing of the GPUs")
    found = [
        (number, reason, sum(held) / len(held))
        for number, reasons in system.throttled.items()
        for reason, held in reasons.items()
        if held and sum(held) / len(held) >= 0.1
    ]
    if not found:
        return None
    heat = [one for one in found if "power" not in one[1] or "brake" in one[1]]
    worst = max(heat or found, key=lambda one: one[2])
    return finding(
        f"GPU {worst[0]} is held back in {share(worst[2])} of the readings: {worst[1].replace('_', ' ')}",
        [
            (f"GPU {number}: {reason.replace('_', ' ')}", held, "share", "system.jsonl: throttled")
            for number, reason, held in found
        ],
        [Remedy("look after the cooling, or ask for another machine" if heat else "raise the power limit")],
        severity="warning" if heat else "info",
    )


@rule(needs_steps=False)
def unused_memory(case: Case) -> Verdict:
    """Less than half of a CUDA device's memory was taken, and another one that holds it would cost a tenth less. Its
    slowdown is estimated as the worse of the ratios of their stated peaks and bandwidths."""
    room = memory_room(case)
    here = accelerator_of_device(str(case.settings("device").get("name", ""))) if case.on_cuda else None
    price, cost = case.price_usd_per_hour, case.account.money.cost_usd
    if room is None or here is None or room.share >= 0.5 or price is None or cost is None:
        return None
    paid = price / max(1, case.account.work.accelerators, case.ranks)
    best = min(_others(case, here, room), key=lambda other: other[0], default=None)
    if best is None or best[0] >= 0.9 * paid:
        return None
    relative_cost, name, slower, hourly = best
    rent, plan = f"rent {name} ({hourly:.2f} USD an hour)", f'hf-efficient plan RECIPE --gpu "{name}"'
    costs = f"the run takes about {slower:.1f} times as long"
    saved = cost * (1 - relative_cost / paid)
    gain = Gain(None, None, None, saved, "the run's cost, by the price and the time there")
    return finding(
        f"{share(1 - room.share)} of the {here.name}'s memory stay empty: {name} would do",
        [
            ("memory taken at the peak", room.held_bytes, "bytes", room.source),
            ("memory of the device", room.device_bytes, "bytes", "spans.jsonl: settings.device.memory_bytes"),
            ("an hour of a GPU now", paid, "usd", "run.json: money.price_usd_per_hour"),
            (f"an hour of {name}", hourly, "usd", "list prices, the lowest"),
            ("time there, an estimate", slower, "times", "stated peaks and bandwidths"),
        ],
        [Remedy(f"{rent}, after a look at {plan}", costs=costs, gain=gain)],
        severity="info",
        confidence="possible",
    )


def _others(case: Case, here: Accelerator, room: MemoryRoom) -> Iterator[tuple[float, str, float, float]]:
    """Of each that holds it: dollars for an hour's work of here, its name, how many times as slow, dollars an hour."""
    needed = 1.1 * (room.held_bytes + CONTEXT_BYTES)
    for there in accelerators():
        peaks = [device.peak_flops_per_second.get(case.account.work.dtype or "") for device in (here, there)]
        bandwidths = [device.bandwidth_bytes_per_second for device in (here, there)]
        prices = [offer.usd_per_gpu_hour for offer in offers(there.name, "on_demand")]
        if there.name != here.name and all((*peaks, *bandwidths, prices)) and there.usable_memory_bytes >= needed:
            slower = max(pair[0] / pair[1] for pair in (peaks, bandwidths) if pair[0] is not None and pair[1])
            yield slower * min(prices), there.name, slower, min(prices)
