"""What is said of a package that is not there."""

from __future__ import annotations

import importlib

import pytest

from whichrank.telemetry.missing_packages import in_words, missing_package


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("no_such_thing.at_all", "no_such_thing"),
        ("pynvml", "nvidia-ml-py"),
        ("google", "protobuf"),
        ("opentelemetry.exporter", "opentelemetry-exporter-otlp-proto-http"),
        ("opentelemetry.protocol", "opentelemetry-proto"),
        # Faults of ours, or of this Python, which no extra mends.
        ("whichrank.agents.gone", ""),
        ("sqlite3", ""),
    ],
)
def test_a_module_is_told_by_what_installs_it(module: str, package: str) -> None:
    assert missing_package(ModuleNotFoundError(name=module)) == package


def test_what_an_import_raises_is_told_with_its_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("no_such_thing")
    assert in_words(raised.value, "agent") == "no_such_thing is not installed: pip install 'whichrank[agent]'"


def test_every_other_error_is_told_as_it_is() -> None:
    assert in_words(ValueError("seven"), "agent") == "ValueError: seven"
    assert in_words(ModuleNotFoundError("no ours", name="whichrank.x"), "agent") == "ModuleNotFoundError: no ours"
