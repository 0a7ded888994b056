import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from hf_efficient.errors import DataError
from hf_efficient.metrics.answers import Answer, AnswerEvaluator, share_of

PROMPTS = [
    "Hello",
    [{"role": "user", "content": "How much is 2 + 2?"}],
    "A",
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Name a colour, please, of your choice."}],
    "The quick brown fox",
]


@pytest.fixture
def model(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    with torch.no_grad():  # greedy choices of a flat untrained head hang on rounding
        model.lm_head.weight.mul_(40)
    return model


@pytest.fixture
def tokenizer(tiny_llama_dir):
    return AutoTokenizer.from_pretrained(tiny_llama_dir)


def trainer_of(model, tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    return Trainer(model=model, args=arguments)


def render(tokenizer, prompt):
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)


def question(prompt):
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def greedy_ids(model, tokenizer, prompt, max_new_tokens, stops=(2,)):
    """One example, no padding, no cache, argmax by argmax."""
    ids = tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"]
    start = len(ids)
    model.eval()
    for _ in range(max_new_tokens):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in stops:
            break
    return ids[start:]


def greedy(model, tokenizer, prompt, max_new_tokens):
    return tokenizer.decode(greedy_ids(model, tokenizer, prompt, max_new_tokens), skip_special_tokens=True).strip()


def run(model, tokenizer, tmp_path, examples, **options):
    seen = []
    evaluator = AnswerEvaluator(tokenizer, examples, on_answers=seen.append, **options)
    metrics = evaluator(trainer_of(model, tmp_path))
    (answers,) = seen
    return metrics, answers


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_answers_are_those_of_a_plain_greedy_loop(model, tokenizer, tmp_path, batch_size):
    expected = [greedy(model, tokenizer, prompt, 12) for prompt in PROMPTS]
    examples = [{"prompt": prompt, "answer": f"  {text}\n"} for prompt, text in zip(PROMPTS, expected, strict=True)]
    examples[2]["answer"] = "something else"
    metrics, answers = run(model, tokenizer, tmp_path, examples, max_new_tokens=12, batch_size=batch_size)
    assert metrics == {"exact_match": 0.8}
    assert answers == [
        Answer(question(prompt), render(tokenizer, prompt), example["answer"], text, match=index != 2)
        for index, (prompt, example, text) in enumerate(zip(PROMPTS, examples, expected, strict=True))
    ]
    assert len(set(expected)) == 5


def test_answer_stops_at_the_end_of_turn(model, tokenizer, tmp_path):
    """The tokenizer's end of sequence is another token than the one with which the template ends a turn."""
    tokenizer.eos_token = "<|endoftext|>"
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    fourth = greedy_ids(model, tokenizer, PROMPTS[0], 4, stops=())[3]
    with torch.no_grad():  # from now on the model says <|im_end|> where it would have said that token
        model.lm_head.weight[[2, fourth]] = model.lm_head.weight[[fourth, 2]]
    ids = greedy_ids(model, tokenizer, PROMPTS[0], 30, stops=())
    assert 2 in ids[:4]
    assert len(ids) == 30  # it would go on and on
    expected = [greedy(model, tokenizer, prompt, 30) for prompt in PROMPTS]
    _, answers = run(model, tokenizer, tmp_path, [{"prompt": p, "answer": ""} for p in PROMPTS], max_new_tokens=30)
    assert [answer.generated for answer in answers] == expected


def test_the_model_is_left_as_it_was(model, tokenizer, tmp_path, monkeypatch):
    model.train()
    model.model.layers[0].eval()  # a part that its owner keeps in evaluation mode stays so
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    config = model.generation_config
    config.update(do_sample=True, temperature=0.6, top_p=0.9, max_length=20)
    before = copy.deepcopy(config.to_dict())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    used = []
    original = type(model).forward

    def watch(self, *args, **kwargs):
        used.append((self.training, kwargs.get("use_cache"), kwargs["input_ids"].shape[1]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", watch)
    trainer = trainer_of(model, tmp_path)
    evaluator = AnswerEvaluator(tokenizer, [{"prompt": "abc", "answer": ""}], max_new_tokens=3)
    state = torch.get_rng_state()
    evaluator(trainer)
    assert used == [(False, True, 3), (False, True, 1), (False, True, 1)]  # with a cache, one token at a time
    assert model.generation_config is config
    assert config.to_dict() == before
    assert model.config.use_cache is False
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def adapted(model):
    torch.manual_seed(2)
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    return model.eval()


def test_adapter_takes_part(model, tokenizer, tmp_path):
    plain = [greedy(model, tokenizer, prompt, 8) for prompt in PROMPTS]
    peft_model = adapted(model)
    config = peft_model.base_model.model.generation_config
    expected = [greedy(peft_model, tokenizer, prompt, 8) for prompt in PROMPTS]
    assert expected != plain
    examples = [{"prompt": p, "answer": text} for p, text in zip(PROMPTS, expected, strict=True)]
    metrics, _ = run(peft_model.train(), tokenizer, tmp_path, examples, max_new_tokens=8, batch_size=3)
    assert metrics == {"exact_match": 1.0}
    assert peft_model.training
    assert peft_model.base_model.model.generation_config is config


def test_special_tokens_of_a_plain_prompt(model, tokenizer, tmp_path, monkeypatch):
    """A text gets the start of sequence that the tokenizer writes, but not its end of sequence."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    assert tokenizer("a")["input_ids"][0] == 1
    assert tokenizer("a")["input_ids"][-1] == 2
    given = []
    original = model.generate
    monkeypatch.setattr(model, "generate", lambda **kw: given.append(kw["input_ids"].tolist()) or original(**kw))
    run(model, tokenizer, tmp_path, [{"prompt": "a", "answer": ""}], max_new_tokens=1)
    run(model, tokenizer, tmp_path, [{"prompt": [{"role": "user", "content": "a"}], "answer": ""}], max_new_tokens=1)
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    chat = tokenizer(render(tokenizer, [{"role": "user", "content": "a"}]), add_special_tokens=False)["input_ids"]
    assert given == [[[1, *bare]], [chat]]


def test_shares_cover_the_examples_and_are_equally_long():
    assert [share_of(5, process, 2) for process in (0, 1)] == [[0, 2, 4], [1, 3, 0]]
    assert [share_of(1, process, 3) for process in (0, 1, 2)] == [[0], [0], [0]]
    assert share_of(3, 0, 1) == [0, 1, 2]


def test_messages_without_a_chat_template(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(DataError) as error:
        AnswerEvaluator(tokenizer, [{"prompt": [{"role": "user", "content": "a"}], "answer": "b"}])
    assert str(error.value) == (
        "evaluate.generate: the prompt is a list of chat messages, but the tokenizer has no chat template. "
        "Name one in train.chat_template_path, or a tokenizer that has one in model.tokenizer."
    )
