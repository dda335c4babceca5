"""Zero-code start: Python imports this at start-up when its folder is on PYTHONPATH (``whichrank run`` puts it there).

Does something only in processes that ``whichrank run`` marked (WHICHRANK_AUTO) and that a launcher made a rank (RANK
and LOCAL_RANK): there it waits for torch to be imported and then starts the recording. Then it hands on to the
sitecustomize that it hides. Processes that merely inherit those variables (compile workers, spawned loaders, loggers)
stay as they are. Not part of the package when it runs: imported by its bare name, before anything else.
"""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any


def _load_instrumentation() -> Any:
    """The instrumentation; from this file's own tree where whichrank is not installed in the job's Python."""
    try:
        import_module("whichrank")
    except ImportError:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = spec_from_file_location(
            "whichrank", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        if spec is None or spec.loader is None:
            raise
        package = module_from_spec(spec)
        sys.modules["whichrank"] = package
        spec.loader.exec_module(package)
    return import_module("whichrank.instrumentation.auto_start")


def _arm() -> None:
    environ = os.environ
    if environ.get("WHICHRANK_AUTO") != "1" or "RANK" not in environ or "LOCAL_RANK" not in environ:
        return
    try:
        _load_instrumentation().arm()
    except Exception as error:  # edge: Python is starting; a job must start with or without us
        if environ.get("WHICHRANK_DEBUG"):
            print(f"whichrank: not recording: {type(error).__name__}: {error}", file=sys.stderr)


def _hand_on() -> None:
    """Run the sitecustomize that Python would have found without us. Its errors are its own."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_hand_on()
