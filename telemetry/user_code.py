"""Which file of Python code is the user's own: shared by what runs in the job and what reads its stacks. Pure."""

from __future__ import annotations

import re
from pathlib import Path

#: Code that is never the user's: installed packages, torch in a source checkout, the standard library, frozen and
#: generated code.
_FOREIGN = re.compile(
    r"(^|/)(site-packages|dist-packages)/"
    r"|/lib(64)?/python3(\.\d+)?t?/"
    r"|/torch/(_\w+|ao|autograd|cuda|distributed|export|fx|jit|multiprocessing|nn|optim|profiler|utils)(/|\.py)"
    r"|/torch/\w+\.py$"
    r"|^<(frozen|__array_function__|eval_with_key)"
    r"|^$"
)
#: Where the framework is the program (``python -m``, a command of its own), its line says more than none.
_FRAMEWORK = re.compile(
    r"/(site|dist)-packages/(lightning|pytorch_lightning|transformers|accelerate|trl|deepspeed|megatron|torchtitan"
    r"|torchtune|axolotl|llamafactory|composer|nemo)/"
)
_PACKAGE = Path(__file__).resolve().parents[1].as_posix()
#: Our own hooks where they do not lie in site-packages. The demo script and the tests are user code like any other.
_OWN_FOLDERS = (f"{_PACKAGE}/instrumentation/", f"{_PACKAGE}/telemetry/")


def is_user_file(file: str) -> bool:
    """Whether a code object with this file name is the user's."""
    return not file.startswith(_OWN_FOLDERS) and not _FOREIGN.search(file)


def is_framework_file(file: str) -> bool:
    """Whether a file belongs to a framework that runs the user's model for him."""
    return bool(_FRAMEWORK.search(file))
