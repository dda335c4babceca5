"""Python imports this at start-up: puts a fault, another device or another process group under somebody's script.

Standard library only until the script itself imports torch. The modules beside this one are compiled under names that
are nobody's code, so that whichrank sees the script's own frames and no line of the harness.
"""

import importlib.abc
import importlib.util
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name: str) -> ModuleType:
    """A module beside this one; its frames are called <frozen outside.NAME>."""
    module = ModuleType(f"outside_{name}")
    with open(os.path.join(HERE, f"{name}.py")) as file:
        code = compile(file.read(), f"<frozen outside.{name}>", "exec")
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module


def patch_all() -> None:
    """What the environment asks for, once torch can be used. The group before the fault, which wraps its calls."""
    if os.environ.get("OUTSIDE_ON_CPU"):
        load("on_cpu").patch_torch()
    if os.environ.get("OUTSIDE_DEVICE"):
        load("on_device").patch_torch()
    if os.environ.get("OUTSIDE_FAULT", "null") != "null":
        load("fault").patch_torch()


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches once ``import torch`` has ended: torch.utils.data is the last that it imports of what is patched."""

    def __init__(self) -> None:
        self.inner: Any = None
        self.asking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Also asked by those who only want to know whether there is torch: nothing has happened yet."""
        if name != "torch" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return None
        self.inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)
        with suppress(AttributeError):
            module.__spec__.loader = self.inner  # type: ignore[union-attr]
        self.inner.exec_module(module)
        patch_all()


if os.environ.get("RANK") and os.environ.get("OUTSIDE_FAULT"):
    sys.meta_path.insert(0, AfterTorch())
