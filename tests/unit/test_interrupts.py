"""Ctrl-C ends a command with status 130 at any time; tested in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.run_commands import ROOT

# What a shell starts in the background ignores Ctrl-C, and so do the processes that it starts.
INTERRUPTED = "interrupted; repeat the command to continue\n"
_HEAD = """import atexit, gc, os, signal, sys, threading, time
from mnmt_jax.runtime.run_command import run_command
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def run(main: str) -> subprocess.CompletedProcess[str]:
    """Run the body of a `main` as a command."""
    body = "\n".join(f"    {line}" for line in main.splitlines())
    program = f"{_HEAD}def main():\n{body}\nrun_command(main)\n"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_printed_output_stays_and_no_code_runs_afterwards():
    """Compiler threads crash at Python's normal exit, so it is skipped."""
    done = run("atexit.register(print, 'end')\nprint('done')\nraise KeyboardInterrupt")
    assert (done.returncode, done.stdout, done.stderr) == (130, "done\n", INTERRUPTED)


def test_an_interrupt_swallowed_by_a_hook_is_raised_again():
    """Like the hook of JAX, which runs at each garbage collection; a call that waits ends too."""
    interrupt = "gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGINT))"
    limit = "threading.Timer(20, os._exit, (7,)).start()"
    done = run(f"{limit}\n{interrupt}\ngc.collect()\ngc.callbacks.clear()\ntime.sleep(60)")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == INTERRUPTED


def test_repeated_interrupts_are_not_lost():
    """A second interrupt may arrive while the first is reported; the hook cannot be interrupted."""
    interrupt = "gc.callbacks.extend([lambda *_: os.kill(os.getpid(), signal.SIGINT)] * 200)"
    busy = "end = time.monotonic() + 5\nwhile time.monotonic() < end:\n    pass"
    done = run(f"{interrupt}\ngc.collect()\ngc.callbacks.clear()\n{busy}\nprint('lost')")
    assert (done.returncode, done.stdout) == (130, "")


def test_an_interrupt_in_a_forked_process_is_raised_again():
    interrupt = "gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGINT))"
    limit = "threading.Timer(20, os._exit, (7,)).start()"
    work = f"{limit}\n{interrupt}\ngc.collect()\ngc.callbacks.clear()\ntime.sleep(60)"
    parent = "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    done = run(f"child = os.fork()\nif child:\n    {parent}\n{work}")
    assert (done.returncode, done.stdout) == (130, "")


def test_other_errors_of_hooks_are_shown():
    done = run("gc.callbacks.append(lambda *_: 1 / 0)\ngc.collect()\ngc.callbacks.clear()")
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr
    assert done.stderr.startswith("Exception ignored in: <function")
