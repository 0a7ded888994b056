"""``accelerate launch -m hf_efficient.train RECIPE [a.b=value ...] [--resume | --overwrite] [--debug]``."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import hf_efficient.early  # first of all
from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.facts.environment import quieten_libraries
from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.launch.exits import earlier_code, end_is_announced, forget_code, is_lost_peer, state_code
from hf_efficient.launch.hangs import dump_when_asked
from hf_efficient.launch.machine import check_uploads, go_offline_without_hub, keep_freed_memory
from hf_efficient.launch.restart import meet_anew, starts_again, watch_peers
from hf_efficient.launch.started import RunFlags, parse_flags
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.stop import EndedBySignal, RunStopped, exit_code, stop_request
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.reporting.terminal import last_streams
from hf_efficient.run_dir.checkpoints import how_to_resume
from hf_efficient.text import printable

_BAD_INPUT = 2
_TERMINATED = 128 + signal.SIGTERM
_WAIT_SECONDS = 10
"""More than the processes of a machine differ in how long they import."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a recipe in this process; returns the exit code. 0: done. 2: something that the user can correct, said on
    standard error. 130: interrupted (Ctrl-C). 143: ended by another signal, or by the stop file. 1: an unforeseen
    fault; its traceback is in the run directory, or with ``--debug`` on the terminal. 0 in the place of the others
    where the whole run ends, which the launcher would otherwise start again."""
    flags = parse_flags(sys.argv[1:] if arguments is None else arguments)
    recipe: Recipe | None = None
    last_streams()
    for number in hf_efficient.early.STOP_SIGNALS:
        signal.signal(number, _end)
    earlier = earlier_code(os.environ)
    if earlier == _BAD_INPUT:  # another start will not cure it; it was said
        return _BAD_INPUT
    if hf_efficient.early.arrived:
        return _ended(exit_code(hf_efficient.early.arrived[0]), recipe)
    if end_is_announced(os.environ):  # before this process heard signals, or while the launcher started it again
        return _ended(_TERMINATED, recipe)
    if earlier is not None:
        forget_code(os.environ)
    try:
        process_timeline().until_exit = arguments is None and flags.preflight is None  # else somebody else's process
        dump_when_asked(os.environ)
        recipe = load_recipe(flags.recipe, flags.overrides)
        code = _run(recipe, flags)
    except HfEfficientError as error:
        if flags.debug:
            state_code(error.exit_code, os.environ)
            raise
        return _for_good(_leave(error.exit_code, str(error)))
    except RunStopped as stopped:
        code = exit_code(stop_request().number)
        _leave(code, f"{stopped}. The same command with --resume continues it.", f"stopped by {stop_request().words} ")
        return _unless_started_again(code)
    except EndedBySignal as ended:
        print(file=sys.stderr)
        return _ended(exit_code(ended.args[0]), recipe)
    except Exception as error:
        if flags.debug:
            state_code(1, os.environ)
            raise
        if is_lost_peer(error) and end_is_announced(os.environ):  # the other one heard of it first
            return _ended(_TERMINATED, recipe)
        return _for_good(_leave(1, _unforeseen(error, None if flags.preflight else recipe)))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        forget_code(os.environ)
    return code


def _run(recipe: Recipe, flags: RunFlags) -> int:
    quieten_libraries(debug=flags.debug)
    check_uploads(recipe)
    go_offline_without_hub(recipe)
    keep_freed_memory()
    from hf_efficient.launch.preflight_wanted import PreflightWanted

    meet_anew(os.environ)
    if flags.preflight is not None:
        from hf_efficient.preflight.process import check_part

        check_part(recipe, flags.preflight)
        return 0
    from hf_efficient.launch.listener import TerminalListener
    from hf_efficient.launch.run import run_recipe

    end_watch = watch_peers(os.environ, _lost)
    try:
        run_recipe(recipe, TerminalListener())
        end_watch()
    except PreflightWanted:
        pass  # and 0: a launcher that restarts what failed must leave it
    except RunStopped:
        end_watch()
        _leave_group()
        raise
    _leave_group()
    return 0


def _leave_group() -> None:
    """Before the interpreter ends, which is aborted where threads of gloo are alive."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _unforeseen(error: Exception, recipe: Recipe | None) -> str:
    """What to tell; keeps the traceback of a recipe's run, unless another process is to blame."""
    if is_lost_peer(error):
        told = f"another process of the run is gone, which this one waited for: {first_line(error)}"
        return f"{told}\n{_how_it_continues(recipe)}"
    return f"{type(error).__name__}: {first_line(error)}\n{_keep_traceback(recipe) if recipe is not None else ''}"


def _ended(code: int, recipe: Recipe | None) -> int:
    return _for_good(_leave(code, f"The run was ended by a signal. {_how_it_continues(recipe)}"))


def _lost(why: str) -> None:
    """Another machine is gone: this process, which may wait for it in a collective, cannot be ended but so."""
    resumes = "--resume continues from the last whole checkpoint"  # shared storage may be gone too: it is not looked at
    code = _leave(1, f"{why}: it is off or unreachable, or its processes were killed. {resumes}.")
    os._exit(_for_good(code))


def _end(number: int, frame: FrameType | None) -> None:
    """A training under way stops after its step; everything else ends here, and a training that does not stop."""
    request = stop_request()
    if request.heard and request.ask(time.monotonic(), number):
        return
    raise EndedBySignal(number)


def _how_it_continues(recipe: Recipe | None) -> str:
    if recipe is None:
        return "It had not begun."
    again = starts_again(os.environ) and not end_is_announced(os.environ)
    unless = "Unless the launcher starts it again: " if again else ""
    return unless + how_to_resume(Path(recipe.output_dir).expanduser())


def _for_good(code: int) -> int:
    """The exit code of a process that ends with this one; the launcher starts nothing again that is told to end."""
    return _unless_started_again(code) if end_is_announced(os.environ) else code


def _unless_started_again(code: int) -> int:
    """0 where a launcher would start again what ends with another code; `hf-efficient train` was told the code."""
    return 0 if starts_again(os.environ) else code


def _keep_traceback(recipe: Recipe) -> str:
    path = Path(recipe.output_dir).expanduser() / EFFICIENCY / "traceback.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError as error:
        return f"This error is unexpected. --debug shows the traceback ({path} cannot be written: {error.strerror})."
    return f"This error is unexpected. The traceback is in {path}; --debug shows it here."


def _leave(code: int, message: str, title: str = "error: ") -> int:
    is_first = state_code(code, os.environ)
    if is_first is None:
        is_first = os.environ.get("LOCAL_RANK", "0") == "0" or _outlives_rank_0(code)
    if is_first:
        for line in message.splitlines():
            print(printable(f"{title}{line}"), file=sys.stderr)
    return code


def _outlives_rank_0(code: int) -> bool:
    """Wait for rank 0, which mostly has the same to say: a launcher ends all the others once one process has failed."""
    if code >= 128:
        return False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(_WAIT_SECONDS)
    return True


if __name__ == "__main__":
    sys.exit(main())
