"""Settings: file < environment < flags, and nothing misspelt goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.commands.settings import Level, RunSettings, SettingsError, View, load_settings, print_settings


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for key in RunSettings.model_fields:
        monkeypatch.delenv(f"WHICHRANK_{key.upper()}", raising=False)
    monkeypatch.delenv("WHICHRANK_CONFIG", raising=False)


def test_defaults_need_no_file() -> None:
    settings, origins = load_settings({})
    assert (settings.level, settings.view, settings.completion) == (Level.events, View.auto, True)
    assert set(origins.values()) == {"default"}


def test_flags_beat_environment_beats_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "whichrank.toml").write_text('level = "off"\nview = "none"\nkeep_rings = true\n')
    monkeypatch.setenv("WHICHRANK_LEVEL", "status")
    monkeypatch.setenv("WHICHRANK_VIEW", "lines")
    settings, origins = load_settings({"view": View.live})
    assert (settings.level, settings.view, settings.keep_rings) == (Level.status, View.live, True)
    assert origins["view"] == "flag"
    assert origins["level"] == "environment WHICHRANK_LEVEL"
    assert origins["keep_rings"] == "whichrank.toml:3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('level = "off"\nlevle = "on"\n', "f.toml:2: unknown key 'levle'; did you mean 'level'?"),
        ("[zzz]\nout = 1\n", "f.toml:1: unknown key 'zzz'; known: out, json_lines"),
        ('\nlevel = "loud"\n', "f.toml:2: level = 'loud'"),
        ("level = \n", "f.toml: not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings({}, Path("f.toml"))
    assert said in str(caught.value)


def test_a_mistake_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICHRANK_COMPLETION", "perhaps")
    with pytest.raises(SettingsError, match="environment WHICHRANK_COMPLETION: completion = 'perhaps'"):
        load_settings({})


def test_the_capture_limit_takes_sizes_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({})[0].capture_limit == 2 << 30
    monkeypatch.setenv("WHICHRANK_CAPTURE_LIMIT", "500MB")
    assert load_settings({})[0].capture_limit == 500_000_000
    assert load_settings({"capture_limit": "1.5GiB"})[0].capture_limit == 3 << 29
    assert load_settings({"capture_limit": "0"})[0].capture_limit == 0
    for wrong in ("1k", "-1", "much"):
        with pytest.raises(SettingsError, match="flag: capture_limit = "):
            load_settings({"capture_limit": wrong})


def test_a_named_file_must_be_there() -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: cannot be read"):
        load_settings({}, Path("missing.toml"))


def test_what_is_printed_reads_back_the_same(tmp_path: Path) -> None:
    settings, origins = load_settings({"level": Level.status, "out": Path("a b"), "native": False})
    (tmp_path / "again.toml").write_text(print_settings(settings, origins))
    assert load_settings({}, Path("again.toml"))[0] == settings
