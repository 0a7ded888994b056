"""A training script of the user's own, run unchanged: each Trainer in it is built with ``EfficientTrainerMixin``."""

import dataclasses
import functools
import importlib.util
import logging
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from hf_efficient.errors import SetupError

if TYPE_CHECKING:
    from hf_efficient.reporting.finish_run import FinishedRun

_TRAINER = "transformers.trainer"

logger = logging.getLogger(__name__)


def check_target(target: str, *, module: bool = False) -> None:
    if module and not _is_module(target):
        raise SetupError(f"-m {target}: there is no such module; name one that `python -m {target}` would run")
    if not module and not Path(target).is_file():
        raise SetupError(f"{target}: there is no such script; name a Python file, or `-m MODULE`")


def run_script(target: str, args: Sequence[str], *, module: bool = False) -> None:
    """In this process. Its ``SystemExit`` passes through; another exception prints its traceback, and the code is 1."""
    sys.argv = [target, *args]
    sys.path.insert(0, str(Path.cwd() if module else Path(target).resolve().parent))
    try:
        if module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except Exception as error:
        trace = _in_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from error


def _is_module(name: str) -> bool:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]


def _in_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback as ``python SCRIPT`` shows it: without this file and ``runpy``."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


class Instrumented:
    """Gives every Trainer that is built from now on the mixin; keeps what their runs came to. Nothing is imported until
    ``transformers.trainer`` is: a script may set variables before."""

    def __init__(self) -> None:
        self.finished: dict[Path, FinishedRun] = {}  # run directory to what came of it, on rank 0
        self.trainers = 0

    def begin(self) -> None:
        loaded = sys.modules.get(_TRAINER)
        if loaded is not None:
            self._instrument(loaded)
        else:
            sys.meta_path.insert(0, _AfterImport(self._instrument))

    def _instrument(self, module: ModuleType) -> None:
        from hf_efficient.recording.timeline import process_timeline

        def new(cls: type, *args: Any, **kwargs: Any) -> Any:
            self.trainers += 1
            return object.__new__(with_mixin(cls))  # whose __init__ Python calls, since it is a subclass

        module.Trainer.__new__ = staticmethod(new)
        process_timeline().finish = self._finish

    def _finish(self, directory: Path, earlier: Any = None, *, page: bool, tell: bool) -> Any:
        from hf_efficient.reporting.finish_run import finish_run

        run = finish_run(directory, earlier, page=page)
        if run.diagnosis is None and earlier is not None:
            run = dataclasses.replace(run, diagnosis=earlier.diagnosis)
        self.finished[directory] = run
        return run


@functools.cache
def with_mixin(cls: type) -> type:
    """The class with the mixin leftmost, under its own name; itself where it has the mixin, or where that fails.
    Nothing stops the training that would not stop it otherwise: gradients are recorded, and not checked."""
    try:
        from hf_efficient.trainer import EfficientTrainerMixin

        if issubclass(cls, EfficientTrainerMixin):
            return cls

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            EfficientTrainerMixin.__init__(self, *args, **{"check_gradients": False, **kwargs})

        own = {"__init__": __init__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        made = types.new_class(cls.__name__, (EfficientTrainerMixin, cls), exec_body=lambda space: space.update(own))
    except Exception:
        logger.warning("%s is not recorded, because of a fault; training continues.", cls.__name__, exc_info=True)
        return cls
    return made


class _AfterImport(MetaPathFinder):
    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_then(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = execute_and_then  # type: ignore[method-assign]
        return spec
