"""What an account leaves out, and why."""

from collections.abc import Iterator, Mapping, Sequence

from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.records.account import AcrossRanks, NotMeasured
from hf_efficient.records.amounts import SequenceAccount, TokenAccount, WorkAccount
from hf_efficient.text import counted

_LACKING = {
    "processed": "input_ids",
    "non_padding": "an attention_mask for each row",
    "target": "a label for each token",
}
"""By kind of token, what a batch lacks where it is not counted."""


def not_measured(
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    parts: Sequence[NotMeasured],
    unreadable: Mapping[str, int],
) -> list[NotMeasured]:
    """The gaps of this run's records; ``parts``: those that the parts of the account name themselves."""
    last = processes[-1]
    found = [*_of_the_process(last), *_of_the_steps(last, ranks), *parts]
    if last.died:
        why = "the process left no end: it was killed, or it is still running"
        found.append(NotMeasured("the end of the run", why))
    stated = [gap for facts in last.facts.values() for gap in facts.get("missing", ())]
    found += [NotMeasured(str(gap["what"]), str(gap["why"])) for gap in stated]
    if any("device_peak_allocated_bytes" in process.memory for process in processes):
        found += _of_the_device(ranks)
    for name, lines in unreadable.items():
        skipped = f"1 unreadable line in {name} was" if lines == 1 else f"{lines} unreadable lines in {name} were"
        found.append(NotMeasured(f"a part of {name}", f"{skipped} skipped"))
    return found


def _of_the_device(ranks: Sequence[RankSteps]) -> Iterator[NotMeasured]:
    segments = [segment for rank in ranks if rank.rank == 0 for segment in rank.segments]
    steps, timed = sum(segment.steps for segment in segments), sum(segment.device_steps for segment in segments)
    if not timed:
        why = "phases are host time: work queued on the device shows in the phase where the host waits for it"
        yield NotMeasured("time on the device", why)
    elif timed < steps:
        what = f"time on the device in {steps - timed} of {counted(steps, 'step')}"
        yield NotMeasured(what, "their events were not done in time")


def _of_the_process(last: ProcessSpans) -> Iterator[NotMeasured]:
    if last.start_from == "records":
        yield NotMeasured("time outside the training loop", "the line that says when the process began is missing")
        return
    if last.start_from == "import":
        yield NotMeasured("time before hf_efficient was imported", "the system does not say when the process started")
    if last.way == "recipe":
        yield NotMeasured("the launcher", "it runs before this process starts; its time is in no record")
    else:
        what = "imports, model load and data preparation, each by itself"
        yield NotMeasured(what, "they belong to the script, and are in `before_trainer` together")
    yield NotMeasured("the interpreter's own end", "Python exits after the last record that a run can write")


def _of_the_steps(last: ProcessSpans, ranks: Sequence[RankSteps]) -> list[NotMeasured]:
    found = []
    if last.way == "callback":
        both = "no event marks where one ends: both are `between_steps`"
        found += [
            NotMeasured("forward and backward, each by itself", "no event marks where one ends: `forward_backward`"),
            NotMeasured("data wait and logging, each by itself", both),
            NotMeasured("evaluations outside train()", "no event marks where one begins: `outside_trainer`"),
            NotMeasured("tokens", "a callback is not given the batches; EfficientTrainer counts them"),
        ]
    else:
        counts = [one.counts for rank in ranks for one in rank.segments]
        lacking = [name for kind, name in _LACKING.items() if any(one[kind] is None for one in counts)]
        if lacking:
            found.append(NotMeasured("tokens of some kinds", f"batches without {' or '.join(lacking)}"))
    return [*found, *_of_ranks_behind(ranks)]


def _of_ranks_behind(ranks: Sequence[RankSteps]) -> Iterator[NotMeasured]:
    first = next((rank.segments for rank in ranks if rank.rank == 0), [])
    for rank in ranks:
        own = {segment.segment: segment.steps for segment in rank.segments}
        missing = sum(max(0, one.steps - own.get(one.segment, 0)) for one in first)
        if missing:
            why = "its records end before those of rank 0, perhaps with its process; tokens and work lack them"
            yield NotMeasured(f"{counted(missing, 'step')} of rank {rank.rank}", why)


def across_gaps(across: AcrossRanks | None) -> list[NotMeasured]:
    if across is None:
        return []
    if across.exposed_by is None:
        why = "it happens inside other phases, `backward` above all"
        return [NotMeasured("communication between the ranks, by itself", why)]
    if across.covered_seconds is not None:
        return []
    why = "only what is waited for is shown; a trace shows the rest: profile.trace"
    return [NotMeasured("communication that computation covers", why)]


def sequence_gaps(account: SequenceAccount, tokens: TokenAccount) -> list[NotMeasured]:
    if account.samples is not None or tokens.non_padding is None:
        return []
    why = "batches whose position_ids do not begin at 0 in each row, or records of a version that did not count them"
    return [NotMeasured("sequences and their lengths", why)]


def work_gaps(account: WorkAccount) -> list[NotMeasured]:
    if account.reason is None:
        return []
    what = "FLOPs, MFU and HFU" if account.model_flops is None else "MFU and HFU"
    if account.model_flops is not None and account.hardware_flops is None and account.mfu is not None:
        what = "FLOPs computed beyond those of the model, and HFU"
    return [NotMeasured(what, account.reason)]
