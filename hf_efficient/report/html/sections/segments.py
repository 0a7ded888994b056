"""The parts of a run: its starts and resumptions, its calls of ``train()``, and its ranks."""

from __future__ import annotations

from hf_efficient.records import ProcessAccount, RunAccount, TrainingAccount
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.parts import has_several_trainings
from hf_efficient.report.phases import phase_label
from hf_efficient.report.rank_rows import across_lines, rank_rows
from hf_efficient.report.restart_words import restart_words
from hf_efficient.report.run_data import RunData
from hf_efficient.units import seconds, share

__all__ = ["segments", "told_end"]


def segments(run: RunData) -> Section | None:
    """A row per process, per call and per rank; None for a run of one process, one call and one rank."""
    account = run.account
    if len(account.time.processes) < 2 and len(account.ranks) < 2 and not has_several_trainings(account):
        return None
    rows = [
        {
            "number": number,
            **_figures(one),
            "unattributed": share(one.unattributed_seconds / one.wall_seconds) if one.wall_seconds > 0 else "",
            "ended": told_end(one),
        }
        for number, one in enumerate(account.time.processes, start=1)
    ]
    ranks = rank_rows(account) if len(account.ranks) > 1 else []
    calls = _calls(account) if has_several_trainings(account) else []
    context = {
        "rows": rows if len(rows) > 1 else [],
        "calls": calls,
        "ranks": ranks,
        "across": list(across_lines(account)),
        "restarts": restart_words(account.restarts),
    }
    title = "Segments" if len(rows) > 1 or calls else "Ranks"
    return Section("segments", title, context=context)


def _figures(one: ProcessAccount | TrainingAccount) -> dict[str, str]:
    return {
        "steps": f"{one.first_step:,} to {one.last_step:,}" if one.first_step is not None else "none",
        "wall": seconds(one.wall_seconds),
        "first": seconds(one.time_to_first_step_seconds) if one.time_to_first_step_seconds is not None else "",
    }


def _calls(account: RunAccount) -> list[dict[str, str]]:
    several = len(account.time.processes) > 1
    return [
        {
            "number": f"{start}.{number}" if several else f"{number}",
            **_figures(one),
            "called": seconds(one.called_at_seconds - process.began_at_seconds),
            "ended": _told_call_end(one),
        }
        for start, process in enumerate(account.time.processes, start=1)
        for number, one in enumerate(process.trainings, start=1)
    ]


def _told_call_end(call: TrainingAccount) -> str:
    if call.ended == "error":
        return f"failed: {call.error}" if call.error else "failed"
    if call.ended == "stopped":
        return f"stopped {call.error}"
    return {"done": "finished", "died": "no end was recorded", None: "not recorded"}[call.ended]


def told_end(process: ProcessAccount) -> str:
    """How a process ended, in words."""
    if process.ended == "done":
        return "finished"
    if process.ended == "stopped":
        return f"stopped {process.error}"
    if process.ended == "error":
        return f"failed: {process.error}" if process.error else "failed"
    doing = f", in {phase_label(process.open_phase)}" if process.open_phase else ""
    return f"no end was recorded; last sign after {seconds(process.last_sign_at_seconds)}{doing}"
