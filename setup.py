"""The C parts of the instrumentation, and of reading what agents send.

Optional: without a compiler the Python parts do the same, more slowly.
"""

from setuptools import Extension, setup

#: One binary for every CPython from 3.10 on and every torch.
STABLE_ABI = {"define_macros": [("Py_LIMITED_API", "0x030A0000")], "py_limited_api": True, "optional": True}

setup(
    script_name="setup.py",  # else it would go into the wheel: the repository's root is the package
    ext_modules=[
        Extension("whichrank.instrumentation._fatal", ["instrumentation/_fatal.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._recorder", ["instrumentation/_recorder.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._phases", ["instrumentation/_phases.c"], **STABLE_ABI),
        Extension("whichrank.instrumentation._steps", ["instrumentation/_steps.c"], **STABLE_ABI),
        Extension("whichrank.telemetry._otlp_scan", ["telemetry/_otlp_scan.c"], **STABLE_ABI),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
