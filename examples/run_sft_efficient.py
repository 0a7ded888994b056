"""Fine-tune a chat model with LoRA on a file of chats.

    python SCRIPT --model Qwen/Qwen2.5-0.5B-Instruct --data chats.jsonl

Each line of the file is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}.
"""

import argparse

import trl
from datasets import load_dataset
from peft import LoraConfig

import hf_efficient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub name or local folder")
    parser.add_argument("--data", required=True, help="chats, as JSON lines")
    parser.add_argument("--output-dir", default="outputs/run_sft")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    options = parser.parse_args()

    trainer = hf_efficient.EfficientSFTTrainer(
        model=options.model,
        args=trl.SFTConfig(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            max_length=1024,
            logging_steps=1,
            report_to="none",
            use_cpu=options.cpu,
            bf16=not options.cpu,
        ),
        train_dataset=load_dataset("json", data_files=options.data, split="train"),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
