"""The variants: one file each, in the order in which they first run.

From ``as_is`` each of the chain leaves out one thing more, so that the difference of two neighbours is what that takes:

    as_is -> quiet -> held_batches -> one_process -> forward
          recording  data          other processes  backward and optimizer

The others measure one thing by itself. To add a variant: write a file with a ``Variant``, and name it in ``VARIANTS``.
"""

from __future__ import annotations

from hf_efficient.isolate.variant import Variant
from hf_efficient.isolate.variants.as_is import AS_IS
from hf_efficient.isolate.variants.forward import FORWARD
from hf_efficient.isolate.variants.forward_no_grad import FORWARD_NO_GRAD
from hf_efficient.isolate.variants.held_batches import HELD_BATCHES
from hf_efficient.isolate.variants.loader import LOADER
from hf_efficient.isolate.variants.logged import LOGGED
from hf_efficient.isolate.variants.micro_batch_doubled import MICRO_BATCH_DOUBLED
from hf_efficient.isolate.variants.micro_batch_halved import MICRO_BATCH_HALVED
from hf_efficient.isolate.variants.one_process import ONE_PROCESS
from hf_efficient.isolate.variants.pauses import PAUSES
from hf_efficient.isolate.variants.quiet import QUIET
from hf_efficient.isolate.variants.tokenisation import TOKENISATION

__all__ = ["VARIANTS"]

VARIANTS: tuple[Variant, ...] = (
    AS_IS,
    QUIET,
    LOGGED,
    HELD_BATCHES,
    ONE_PROCESS,
    FORWARD,
    FORWARD_NO_GRAD,
    LOADER,
    TOKENISATION,
    PAUSES,
    MICRO_BATCH_HALVED,
    MICRO_BATCH_DOUBLED,
)
