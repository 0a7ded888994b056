"""The engines that spread a model over processes, as accelerate and DeepSpeed are told of them; no torch.

``layout`` says which processes there are, ``accelerate_config`` what each of them is to be part of,
``deepspeed_config`` what DeepSpeed is to do in them, ``launch_flags`` how the launcher is told on its command line, and
``started`` what a launcher has told this process.
"""
