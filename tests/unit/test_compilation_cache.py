"""The persistent compilation cache."""

import os
import stat
import subprocess
import sys

import pytest

from mnmt_jax.runtime import compilation_cache
from mnmt_jax.runtime.run_command import run_command

# Compiles for longer than `enable_compilation_cache` asks for, and prints where it came from.
SCRIPT = """
import logging, sys
from mnmt_jax.runtime.run_command import run_command

def main():
    import jax, jax.numpy as jnp
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    found = []
    jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
    jax.jit(lambda x: jnp.linalg.inv(x) @ x)(jnp.eye(4))
    print("hit" if "/jax/compilation_cache/cache_hits" in found else "anew")

run_command(main)
"""


def run(folder, **variables):
    """Run the script in a process with a separate cache folder; return its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XDG_"))}
    environment = kept | {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu"} | variables
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.strip()


def test_the_next_command_compiles_nothing(tmp_path):
    assert run(tmp_path) == "anew"
    assert run(tmp_path) == "hit"
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false") == "anew"
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "other")) == "anew"
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "other")) == "hit"


@pytest.mark.parametrize(
    ("name", "value"),
    [("JAX_ENABLE_COMPILATION_CACHE", "maybe"), ("JAX_COMPILATION_CACHE_DIR", f"{__file__}/in")],
)
def test_settings_that_jax_ignores_are_one_error_line(name, value, monkeypatch, capfd):
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: 0)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {name}={value}: ")


def test_the_cache_folder_is_private(tmp_path, monkeypatch):
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jax", None)  # whose settings are those of the tests
    monkeypatch.delitem(sys.modules, "jax")
    compilation_cache.enable_compilation_cache()
    folder = compilation_cache.cache_folder()
    assert folder.is_relative_to(tmp_path) and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


def test_an_unwritable_cache_folder_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file") == "anew"
    assert run(tmp_path / "file") == "anew"


def test_a_truncated_program_is_compiled_again(tmp_path):
    """It is then stored again; JAX alone would warn each time and leave the file."""
    assert run(tmp_path) == "anew"
    ((folder,),) = [[*(tmp_path / "mnmt_jax").iterdir()]]
    programs = [*folder.glob("*-cache")]
    for path in programs:
        path.write_bytes(path.read_bytes()[:-5])
    assert run(tmp_path) == "anew" and run(tmp_path) == "hit"
    assert {*folder.glob("*-cache")} == {*programs}


def test_the_least_recently_used_program_is_removed_first(tmp_path):
    for number, name in enumerate(("old-cache", "read-cache", "new-cache")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (number, number))
    os.utime(tmp_path / "read-cache", (9, 1))
    compilation_cache.remove_unused(tmp_path, 300)
    assert len([*tmp_path.iterdir()]) == 3
    compilation_cache.remove_unused(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"read-cache", "new-cache"}
    compilation_cache.remove_unused(tmp_path, 100)
    assert {path.name for path in tmp_path.iterdir()} == {"read-cache"}


@pytest.mark.parametrize("cpu_flags", ["flags : fma avx2", "Features : asimd"])
def test_different_processors_use_different_folders(monkeypatch, cpu_flags):
    folder = compilation_cache.cache_folder()
    monkeypatch.setattr(
        compilation_cache.Path, "read_text", lambda path, **_: f"processor: 0\n{cpu_flags}\n"
    )
    assert (
        compilation_cache.cache_folder() != folder
        and compilation_cache.cache_folder().parent == folder.parent
    )
