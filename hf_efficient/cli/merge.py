"""``hf-efficient merge``: a trained adapter into its model."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import print_json


class _Base(str, Enum):
    dequantized = "dequantized"
    dense = "dense"


class _Dtype(str, Enum):
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


def merge(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Output directory of a run, or one of its checkpoints.")
    ],
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. Default: RUN_DIR/merged.")] = None,
    base: Annotated[
        _Base | None,
        typer.Option(
            help="Weights to merge a QLoRA adapter into: the dequantized ones that it was trained beside "
            "(default), or the original ones, which gives another model than the one trained."
        ),
    ] = None,
    dtype: Annotated[_Dtype | None, typer.Option(help="Data type to save in. Default: the base's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Merge a trained adapter into its model, and check that the logits stay the same.

    Example: hf-efficient merge outputs/llama3.2-1b-qlora --output llama3.2-1b-merged
    """
    from hf_efficient.launch.merge import merge_run

    report = merge_run(run_dir, output, dtype.value if dtype else None, base=base.value if base else None)
    if as_json:
        print_json(report.to_dict())
        return
    print(f"Merged into the {report.base} base, {report.parameters:,} parameters, {report.dtype}: {report.output}")
    print(
        f"Its logits differ from the unmerged model's by {report.relative_difference:.1e} (relative; rounding "
        f"explains up to {report.tolerance:.0e}); the adapter itself moved them by {report.adapter_effect:.1e}."
    )
