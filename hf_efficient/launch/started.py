"""What this process was asked for, and what a launcher has started it as, against what the recipe asks for.

A launch is known by its agents, which live as long as it does. ``TORCHELASTIC_RESTART_COUNT`` counts the failures of
one machine's processes alone.
"""

import argparse
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from hf_efficient.errors import SetupError
from hf_efficient.launch.command import Engine, Layout, deepspeed_fields, is_zero, strategy_of
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.schema import Recipe, is_set, told_where

# Environment variables: the file in which a run that fails leaves its exit code; what the launcher of `hf-efficient
# train` calls itself on this machine; the port that a process which has left its agent's store was given first; the
# launcher's command line, which the run prints once nothing is wrong with its input.
STATUS_FILE, LAUNCH, MET_AT = "HF_EFFICIENT_STATUS_FILE", "HF_EFFICIENT_LAUNCH", "HF_EFFICIENT_MET_AT"
COMMAND = "HF_EFFICIENT_COMMAND"


@dataclass(frozen=True)
class RunFlags:
    recipe: str  # path or shipped name
    overrides: tuple[str, ...]
    debug: bool
    preflight: Literal["save", "load"] | None = None  # do this part of the preflight check, in place of the run


def parse_flags(arguments: Sequence[str]) -> RunFlags:
    """Read the command line; leaves by ``SystemExit(2)`` with a usage line where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="accelerate launch -m hf_efficient.train",
        description="Fine-tune as a recipe says.",
        epilog="example: accelerate launch -m hf_efficient.train quickstart/qlora train.learning_rate=1e-4",
    )
    parser.add_argument("recipe", help="a recipe file, or the name of a shipped one (hf-efficient recipes)")
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help="values that replace the recipe's")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="resume from the last checkpoint in output_dir")
    existing.add_argument("--overwrite", action="store_true", help="replace the run in output_dir")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and the libraries' messages")
    # Of `hf-efficient train`, which starts the one, then the other.
    parser.add_argument("--preflight", choices=("save", "load"), help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(list(arguments))
    named = {"resume": options.resume, "overwrite": options.overwrite}
    existing_output = [f"existing_output={how}" for how, is_asked in named.items() if is_asked]
    return RunFlags(options.recipe, (*options.overrides, *existing_output), options.debug, options.preflight)


@dataclass(frozen=True)
class Launch:
    """All processes that train together. ``is_restart``: an agent has started processes before; ``is_first``: surely no
    restart, by the only agent, or since these very processes began the run here."""

    agents: tuple[str, ...] = ()  # of all machines; none without a launcher that starts processes again
    is_restart: bool = False
    is_first: bool = False

    def continues_in(self, agents: Iterable[str]) -> bool:
        """Whether this is a restart of the launch of these: a machine may have been replaced, not all of them."""
        return not self.is_first and bool(set(self.agents) & set(agents))


ALONE = Launch()  # no launcher starts this process again


def own_agent(environment: Mapping[str, str]) -> str | None:
    """The agent that started this process, as no other is called; None where none did."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    if name := environment.get(LAUNCH):
        return f"{socket.gethostname()}/{name}"
    agent = psutil.Process(os.getppid())
    since_boot = agent.create_time() - psutil.boot_time()  # psutil adds it up by the clock, which may be set meanwhile
    return f"{socket.gethostname()}/{agent.pid}/{since_boot:.2f}"


_DEEPSPEED = "ACCELERATE_DEEPSPEED_"


def started_engine(environment: Mapping[str, str]) -> Engine:
    if _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        stage = environment.get(f"{_DEEPSPEED}ZERO_STAGE", "2")
        return {"1": "zero1", "3": "zero3"}.get(stage, "zero2")  # type: ignore[return-value]
    if _is_true(environment, "ACCELERATE_USE_FSDP"):
        return "fsdp2"
    return "ddp" if started_processes(environment) > 1 else "none"


def started_processes(environment: Mapping[str, str]) -> int:
    return int(environment.get("WORLD_SIZE", "1"))


def started_nodes(environment: Mapping[str, str]) -> int:
    here = int(environment.get("LOCAL_WORLD_SIZE", "0"))
    return max(1, started_processes(environment) // here) if here else 1


def engine_contradiction(recipe: Recipe, environment: Mapping[str, str]) -> str | None:
    started = started_engine(environment)
    wanted = strategy_of(recipe, started_processes(environment))
    if recipe.distributed.strategy == "auto" and started in ("none", "ddp"):
        return None
    if started != wanted:
        words = {"none": "one process", "ddp": "data-parallel processes (DDP)"}.get(started, started)
        return _against(recipe, "strategy", recipe.distributed.strategy, f"the launcher started {words}")
    first = next(_differences(recipe, environment, started), None)
    return None if first is None else _against(recipe, *first)


def _differences(recipe: Recipe, environment: Mapping[str, str], engine: Engine) -> Iterator[tuple[str, str, str]]:
    """Key, the recipe's value of it, and what the launcher does instead."""
    offload = recipe.distributed.offload
    if is_zero(engine):
        own = environment.get(f"{_DEEPSPEED}CONFIG_FILE", "none")
        if own != "none":
            yield "strategy", engine, f"the launcher names a DeepSpeed configuration of its own, {own}"
        fields = deepspeed_fields(engine, offload, Layout(1, 1, 1))
        for part, name in (("optimizer", "offload_optimizer_device"), ("parameters", "offload_param_device")):
            given = environment.get(f"{_DEEPSPEED}{name.upper()}", "none")
            if given != fields[name]:
                yield f"offload.{part}", str(getattr(offload, part)).lower(), f"--{name} is {given}"
    elif engine == "fsdp2":
        if environment.get("FSDP_VERSION", "1") != "2":
            yield "strategy", "fsdp2", "the launcher started FSDP version 1 (--fsdp_version)"
        offloads = _is_true(environment, "FSDP_OFFLOAD_PARAMS")
        if offloads != offload.parameters:
            yield "offload.parameters", str(not offloads).lower(), f"--fsdp_offload_params is {str(offloads).lower()}"


_FLAGS = "give `accelerate launch` what `hf-efficient train RECIPE --dry-run` prints."


def _against(recipe: Recipe, key: str, value: str, launcher: str, remedy: str = _FLAGS) -> str:
    where = told_where(recipe, f"distributed.{key}")
    return (
        f"{where}distributed.{key}: is {value}, but {launcher}. Start with `hf-efficient train`, which derives the "
        f"launch from the recipe; or {remedy}"
    )


def _is_true(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() in ("true", "1")


def started_recipe(recipe: Recipe, environment: Mapping[str, str]) -> Recipe:
    """The recipe for the processes that a launcher has started; ``SetupError`` before they meet."""
    processes = started_processes(environment)
    contradiction = engine_contradiction(recipe, environment)
    contradiction = contradiction or launch_contradiction(recipe, processes, started_nodes(environment))
    if contradiction is not None:
        raise SetupError(contradiction)
    return with_accumulation(recipe, processes)


def launch_contradiction(recipe: Recipe, world_size: int, nodes: int = 1) -> str | None:
    """None where they agree. A bare ``accelerate launch`` would train with one process, and another batch size."""
    if is_set(recipe, "distributed.nodes") and recipe.distributed.nodes != nodes:
        return (
            f"distributed.nodes: is {recipe.distributed.nodes}, but the processes of {nodes} were started. Start "
            "`hf-efficient train` on every machine, with --node-rank and --main-address; or write "
            f"distributed.nodes={nodes}."
        )
    wanted = recipe.distributed.processes
    if wanted == "auto" or wanted * nodes == world_size or not is_set(recipe, "distributed.processes"):
        return None
    if nodes > 1:
        return (
            f"distributed.processes: is {wanted} on each of {nodes} machines, but {world_size} were started together. "
            f"Write distributed.processes={world_size // nodes}, or start as many as it says."
        )
    flags = f"--num_processes={wanted}" + (" --multi_gpu" if int(wanted) > 1 else "")
    started = "1 process was" if world_size == 1 else f"{world_size} processes were"
    remedy = f"pass {flags} to `accelerate launch`; or write distributed.processes={world_size}."
    return _against(recipe, "processes", str(wanted), f"{started} started", remedy)
