"""What people call a job whose command this is: its script or module, behind every launcher, shell and wrapper. Pure.

``torchrun … train/gpt.py``, ``python -m torch.distributed.run … gpt.py``, ``sh -c 'exec "$@"' log torchrun … gpt.py``
and ``./wrapper.sh torchrun … gpt.py`` are all ``gpt.py``. Never a secret: neither an argument nor a variable's value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...telemetry.redaction import redact

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
#: Programs and modules that start the ranks.
_LAUNCHERS = frozenset({"torchrun", "deepspeed"})
_LAUNCHING_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
#: Options of all of them that take no value; every other takes one, unless it is written with =.
_FLAGS = frozenset(
    (
        *("standalone", "module", "m", "no-python", "run-path", "use-env", "help", "h", "virtual-local-rank"),
        *("multi-gpu", "cpu", "tpu", "debug", "quiet", "q", "mps", "use-fsdp", "use-deepspeed", "use-megatron-lm"),
        *("use-parallelism-config", "same-network", "no-local-rank", "enable-cpu-affinity"),
    )
)
#: Python's own options with a value.
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
#: What scripts do before what they are there for.
_PREPARING = frozenset(
    (
        *("cd", "export", "set", "unset", "source", ".", "trap", "umask", "ulimit", "mkdir", "module", "echo"),
        *("printf", "sleep", "true", ":", "test", "[", "wait", "rm", "cp", "mv"),
    )
)
_RUNS_TEXT = re.compile(r"-[a-z]*c")
_ASSIGNMENT = re.compile(r"\w+=")
_ARGUMENT = re.compile(r"\$\{?(\d)\}?")
_ALL_ARGUMENTS = frozenset({"$@", "$*", "${@}", "${*}"})


@dataclass(frozen=True, slots=True)
class _Name:
    """is_script: what Python runs, and not only the program that was found."""

    text: str
    is_script: bool


def name_script(command: Sequence[str]) -> str:
    """What people call a job whose command this is: its script or module; "" for an empty command.

    Secrets are cut out.
    """
    return redact(_named(list(command)).text)


def _named(words: list[str]) -> _Name:
    words = _without_beginning(words)
    if not words:
        return _Name("", False)
    program = PurePath(words[0]).name
    if program in _SHELLS:
        return _of_shell(program, words[1:])
    if _PYTHON.fullmatch(program):
        return _of_python(program, words[1:])
    if program in _LAUNCHERS:
        return _of_launcher(program, words[1:])
    if program == "accelerate" and words[1:2] == ["launch"]:
        return _of_launcher(program, words[2:])
    if program.endswith(".py"):
        return _Name(program, True)
    # srun, mpirun, env, numactl, uv run, a wrapper that ends in "$@": what stands behind is what it is for.
    for index in range(1, len(words)):
        if _starts_something(words, index):
            behind = _named(words[index:])
            return behind if behind.is_script else _Name(program, False)
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    return _Name(PurePath(script).name, True) if script is not None else _Name(program, False)


def _without_beginning(words: list[str]) -> list[str]:
    """Without assignments, and words of a shell that only say how the rest is run."""
    index = 0
    while index < len(words) and (_ASSIGNMENT.match(words[index]) or words[index] in ("exec", "env", "command", "!")):
        index += 1
    return words[index:]


def _starts_something(words: list[str], index: int) -> bool:
    program = PurePath(words[index]).name
    return (
        program in _SHELLS
        or program in _LAUNCHERS
        or _PYTHON.fullmatch(program) is not None
        or (program == "accelerate" and words[index + 1 : index + 2] == ["launch"])
    )


def _of_python(program: str, words: list[str]) -> _Name:
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        option = words[index]
        if option == "-m" and index + 1 < len(words):
            module = words[index + 1]
            if module in _LAUNCHING_MODULES:
                return _of_launcher(module, words[index + 2 :])
            return _Name(module, True)
        if _RUNS_TEXT.fullmatch(option):
            return _Name(program, False)
        index += 2 if option in _PYTHON_VALUES else 1
    if index >= len(words) or words[index] == "-":
        return _Name(program, False)
    script = PurePath(words[index]).name
    if script in _LAUNCHERS or script == "accelerate":  # its own file: python /opt/bin/torchrun …
        return _named([script, *words[index + 1 :]])
    return _Name(script, True)


def _of_launcher(program: str, words: list[str]) -> _Name:
    index, options = 0, set[str]()
    while index < len(words) and words[index].startswith("-"):
        option, given, _ = words[index].partition("=")
        option = option.lstrip("-").replace("_", "-")
        options.add(option)
        index += 1
        # A flag that is not known here would take the script for its value.
        if not given and option not in _FLAGS and index < len(words) and not words[index].endswith(".py"):
            index += 1
    if index >= len(words):
        return _Name(program, False)
    if options & {"m", "module"}:
        return _Name(words[index], True)
    if "no-python" in options:
        inside = _named(words[index:])
        return _Name(inside.text, True)
    return _Name(PurePath(words[index]).name, True)


def _of_shell(program: str, words: list[str]) -> _Name:
    index = 0
    while index < len(words) and words[index].startswith(("-", "+")):
        if _RUNS_TEXT.fullmatch(words[index]):
            return _of_shell_text(program, words[index + 1 :])
        index += 2 if words[index].endswith(("o", "O")) else 1  # -euo pipefail
    if index >= len(words):
        return _Name(program, False)
    # A wrapper is named after what it is given to run, if it is given a command.
    if index + 1 < len(words) and (_starts_something(words, index + 1) or words[index + 1].endswith(".py")):
        return _named(words[index + 1 :])
    return _Name(PurePath(words[index]).name, False)


def _of_shell_text(program: str, words: list[str]) -> _Name:
    """words: the text, and the arguments that it calls $0, $1 and so on."""
    if not words:
        return _Name(program, False)
    names = [
        (piece, _named(piece)) for piece in map(_without_beginning, _simple_commands(words[0], words[1:])) if piece
    ]
    for _, name in names:
        if name.is_script:
            return name
    rest = [name for piece, name in names if piece[0] not in _PREPARING]
    return rest[-1] if rest else _Name(program, False)


def _simple_commands(text: str, arguments: list[str]) -> list[list[str]]:
    """As far as it can be read; without redirections, and with the arguments in their places."""
    reader = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split, reader.commenters = True, "#"
    pieces: list[list[str]] = [[]]
    to_file = False
    try:
        for token in reader:
            if set(token) <= set("();<>|&"):
                to_file = "<" in token or ">" in token
                if not to_file:
                    pieces.append([])
            elif to_file:
                to_file = False
            elif token in _ALL_ARGUMENTS:
                pieces[-1] += arguments[1:]
            elif given := _ARGUMENT.fullmatch(token):
                pieces[-1] += arguments[int(given[1]) : int(given[1]) + 1]
            else:
                pieces[-1].append(token)
    except ValueError:  # a quote is open: what stands in it may be anything
        pass
    return pieces
