"""What a run will write to its disk."""

from __future__ import annotations


def checkpoints_at_once(saves: int, limit: int | None, *, keeps_best: bool, there: int = 0) -> int:
    """Checkpoints that are still to be written and lie there together, at the most.

    The Trainer deletes an old one only after the new one is written: one more than ``save_total_limit`` lie there for
    a moment; two more where the best one is kept beside the last.

    Hand-worked: 12 saves without a limit: 12. With a limit of 2: 3; with the best kept: 4. 2 saves, limit 5: 2. 12
    saves, 4 of them there already: 8; with a limit of 2, 2 there already: 1.

    Args:
        saves: of the whole run.
        limit: ``train.save_total_limit``; None or less than one: none.
        keeps_best: ``train.load_best_model_at_end``.
        there: checkpoints that lie there already, of the run that goes on.
    """
    most = saves if limit is None or limit < 1 else min(saves, limit + 1 + keeps_best)
    return max(0, most - there)


def disk_needed(checkpoints: int, checkpoint_bytes: int, model_bytes: int, merged_bytes: int = 0) -> int:
    """Bytes: all checkpoints to come, the model in the end, the merged model.

    Hand-worked: 3 checkpoints of 100 and a model of 40: 340; merged, 1,000 more: 1,340.
    """
    return checkpoints * checkpoint_bytes + model_bytes + merged_bytes
