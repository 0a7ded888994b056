"""The page of a prepared data set: its funnel, and rows that each stage removed beside rows that it kept."""

from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hf_efficient.curation.worth import TrainingRate
from hf_efficient.records.account import RunAccount
from hf_efficient.records.prepared import PreparedSet
from hf_efficient.reporting import prepared as words
from hf_efficient.reporting.html.render import Section, render


def prepared_page(
    prepared: PreparedSet, folder: Path, rate: TrainingRate, command: str, written: datetime | None = None
) -> str:
    sections = [Section("funnel", "Funnel", context=funnel_context(prepared, rate))]
    for stage in stages_context(prepared):
        sections.append(Section(f"stage-{stage['id']}", stage["title"], context=stage, macro="stage_rows"))
    facts = [("Folder", str(folder)), ("Key", prepared.key), ("Written", prepared.written), *prepared.versions.items()]
    sections.append(Section("facts", "Versions", context={"facts": facts}))
    title = f"{prepared.recipe}: data · hf_efficient"
    page = {"title": title, "kind": "data", "command": command, "found": prepared}
    return render("prepared", sections, span=None, written=written, **page)


def run_section(account: RunAccount, prepared: PreparedSet) -> Section:
    """For the page of a run, at its own speed and price."""
    speed, price = account.tokens.non_padding_tokens_per_second, account.money.price_usd_per_hour
    context = funnel_context(prepared, TrainingRate(speed, price, "as this run"))
    return Section(
        "data", "What the data were made from", context={**context, "stages": stages_context(prepared)}, short="Data"
    )


def funnel_context(prepared: PreparedSet, rate: TrainingRate) -> dict[str, Any]:
    table = words.funnel_table(prepared, rate, whole=True)
    return {"table": table, "sources": words.source_table(prepared), "worth": words.worth_sentence(prepared, rate)}


def stages_context(prepared: PreparedSet) -> list[dict[str, Any]]:
    """Of each stage that did something: rows that it removed beside rows that it kept."""
    return [
        {
            "id": stage.name.replace(".", "-"),
            "title": words.stage_label(stage).capitalize(),
            "stage": stage,
            "pairs": pairs,
            "line": words.stage_line(stage),
        }
        for stage in prepared.stages
        if (stage.removed or stage.changed or stage.is_synthetic)
        and (pairs := list(zip_longest(stage.removed, stage.kept)))
    ]
