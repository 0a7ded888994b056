"""A live model and the trainer around it, looked at once before the first step. Knows transformers and PEFT."""
