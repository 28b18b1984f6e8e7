"""A training script of one's own, on the host that starts its job: run, and checked."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError, LabkitError

if TYPE_CHECKING:
    from types import ModuleType

    from labkit.elastic.protocol.program import Program

FUNCTION: Final = "program"


def program_from(script: str, *, code: Path, data: Path | None, seed: int) -> Program:
    """Return what a script trains.

    The classes and functions of the script, and of modules beside it, are pickled by value: workers on other hosts need
    no code. So is its data: what the function returns travels to each worker.

    Parameters
    ----------
    script : str
        "FILE.py" or "FILE.py:function".
    code, data : Path
        The folders on this host.
    seed : int
        Of the global random generator of torch while the script runs.

    Raises
    ------
    InputError
        If the script fails, or returns something else than model, data and loss: where, and what was expected.
    """
    import torch

    from labkit.elastic.data import as_dataset
    from labkit.elastic.protocol.program import Program

    file, _, function = script.partition(":")
    function = function or FUNCTION
    if not (code / file).is_file():
        raise InputError(f"script {file} is not in the code that was brought here; expected it in {code}.")
    torch.manual_seed(seed)
    made = _called(code / file, function, data)
    if not (isinstance(made, tuple) and len(made) == 3):
        raise InputError(f"{file}: {function}() returned a {type(made).__name__}; expected (model, data, loss).")
    _pickle_by_value(code)
    program = Program(made[0], as_dataset(made[1]), made[2])
    program.check()
    return program


def _called(path: Path, function: str, data: Path | None) -> Any:
    """Run a script and return what its function returns; its errors name the line."""
    sys.path.insert(0, str(path.parent))
    try:
        module = _loaded(path)
        wanted = getattr(module, function, None)
        if not callable(wanted):
            raise InputError(
                f"{path.name} has no function {function}(data); expected one that returns model, data, loss."
            )
        return wanted(data)
    except LabkitError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"{path.name}{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _pickle_by_value(code: Path) -> None:
    """Let classes and functions of all modules from a folder be pickled with their code."""
    import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(code):
            cloudpickle.register_pickle_by_value(module)
