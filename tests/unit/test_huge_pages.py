"""Tests of the restart with huge pages."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from mnmt_jax.runtime import huge_pages

PROGRAM = """
import os, pathlib, sys
from mnmt_jax.runtime import huge_pages
huge_pages._POLICY = pathlib.Path(sys.argv[1])
os.confstr = lambda name: "glibc 2.36"
print("start", os.environ.get("GLIBC_TUNABLES"), *sys.argv[2:], flush=True)
huge_pages.restart_with_huge_pages()
print("end", sys.flags.utf8_mode, sys.stdin.read(), os.getpid())
"""


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Write the system's policy and the version of the C library; return the started commands."""
    started = []
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(huge_pages, "_POLICY", tmp_path / "enabled")
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))

    def write(text, library="glibc 2.36"):
        (tmp_path / "enabled").write_text(text)
        monkeypatch.setattr(os, "confstr", lambda name: library)
        huge_pages.restart_with_huge_pages()
        return started

    return write


def test_restarts_once_with_the_same_arguments_and_input(tmp_path):
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    command = [sys.executable, "-X", "utf8=1", "-c", PROGRAM, tmp_path / "enabled", "a b", "--c"]
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        output, _ = process.communicate("text")
    assert output.splitlines() == [
        "start None a b --c",
        "start glibc.malloc.hugetlb=1 a b --c",
        f"end 1 text {process.pid}",
    ]


def test_restarts_where_huge_pages_come_on_request(policy):
    assert policy("always [madvise] never") == [
        (sys.executable, [sys.executable, *sys.orig_argv[1:]])
    ]


@pytest.mark.parametrize("text", ["[always] madvise never", "always madvise [never]", ""])
def test_does_not_restart_under_another_policy(policy, text):
    assert policy(text) == []


@pytest.mark.parametrize("library", ["glibc 2.34", "musl 3.0", "", None])
def test_does_not_restart_with_another_library(policy, library):
    assert policy("always [madvise] never", library) == []


def test_leaves_a_variable_as_it_is(policy, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    assert policy("always [madvise] never") == []


def test_leaves_a_worker_of_multiprocessing_as_it_is(policy, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)
    assert policy("always [madvise] never") == []


def test_runs_on_if_the_restart_is_refused(policy, monkeypatch):
    refused = []

    def refuse(*command):
        refused.append(command)
        raise PermissionError

    monkeypatch.setattr(os, "execv", refuse)
    assert policy("always [madvise] never") == []
    assert len(refused) == 1
