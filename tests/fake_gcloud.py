"""gcloud's commands for TPUs, for tests: flags are checked, the state is kept in a folder.

The folder in `FAKE` holds `state` of the slice or the request, `calls`, and `statuses`: those with
which trainings still to come end; 255 is a preemption. Hosts run the commands of setup
and training in `FAKE/host`; their other commands are only parsed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FAKE = Path(os.environ.get("FAKE", "fake"))
# Flags that a command needs and those that it may have, as far as pod.sh uses them.
_FLAGS = {
    "tpu-vm create": ("accelerator-type version zone", "spot"),
    "tpu-vm describe": ("format zone", ""),
    "tpu-vm delete": ("quiet zone", ""),
    "tpu-vm ssh": ("command worker zone", ""),
    "tpu-vm scp": ("worker zone", ""),
    "queued-resources create": (
        "accelerator-type runtime-version zone",
        "node-count node-id node-prefix spot",
    ),
    "queued-resources describe": ("format zone", ""),
    "queued-resources delete": ("force quiet zone", ""),
    "queued-resources ssh": ("command node worker zone", ""),
    "queued-resources scp": ("node worker zone", ""),
}
_NEXT = {"WAITING_FOR_RESOURCES": "PROVISIONING", "PROVISIONING": "ACTIVE"}
_READY = ("READY", "ACTIVE")


def write_command(folder: Path) -> None:
    """Write `gcloud` and `tar` into a folder for `PATH`, and a host that has the checkout.

    The host's environment has an interpreter that only writes what it trains.
    """
    command = folder / "gcloud"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    python = folder / "host" / "mnmt-jax" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    tar = folder / "tar"
    tar.write_text("#!/bin/sh\n")
    python.write_text(
        '#!/bin/sh\n[ "$1" != -m ] || exit 0\n'
        'printf "%s\\n" "$LIBTPU_INIT_ARGS" "$@" >> "$FAKE/trainings"\n'
    )
    for file in (command, python, tar):
        file.chmod(0o755)
    root = Path(__file__).resolve().parents[1]
    for name in ("scripts", "setup.cfg"):
        (folder / "host" / "mnmt-jax" / name).symlink_to(root / name)


def main(arguments: list[str]) -> int:
    """Run a command; wrong flags end it with status 2, as gcloud does."""
    assert arguments[:2] == ["compute", "tpus"], arguments
    kind, verb, *rest = arguments[2:]
    flags = dict(re.fullmatch(r"--([a-z-]+)=?(.*)", word, re.DOTALL).groups() for word in rest
                 if word.startswith("--"))  # fmt: skip
    names = [word for word in rest if not word.startswith("--")]
    required, optional = (set(text.split()) for text in _FLAGS[f"{kind} {verb}"])
    if required - flags.keys() or flags.keys() - required - optional:
        print(f"ERROR: {kind} {verb}: flags {sorted(flags)}", file=sys.stderr)
        return 2
    with (FAKE / "calls").open("a", encoding="utf-8") as calls:
        calls.write(" ".join([kind, verb, *rest]) + "\n")
    return {"create": create, "describe": describe, "delete": delete, "ssh": ssh, "scp": scp}[verb](
        kind, names, flags
    )


def create(kind: str, names: list[str], flags: dict[str, str]) -> int:
    """Create a slice, or a request that is granted later."""
    if (FAKE / "state").exists():
        return 1
    nodes = sorted(name for name in flags if name.startswith("node-"))
    if kind == "queued-resources" and nodes not in (["node-id"], ["node-count", "node-prefix"]):
        return 2
    is_refused = (FAKE / "refuses").exists()
    waiting = "FAILED" if is_refused else "WAITING_FOR_RESOURCES"
    set_state("READY" if kind == "tpu-vm" else waiting)
    return 0


def describe(kind: str, names: list[str], flags: dict[str, str]) -> int:
    """Print the state; a request moves to its next one."""
    if not (FAKE / "state").exists():
        return 1
    state = (FAKE / "state").read_text()
    wanted = "value(state)" if kind == "tpu-vm" else "value(state.state)"
    print(state if flags["format"] == wanted else "")
    set_state(_NEXT.get(state, state))
    return 0


def delete(kind: str, names: list[str], flags: dict[str, str]) -> int:
    """Delete the slice or the request."""
    (FAKE / "state").unlink()
    return 0


def scp(kind: str, names: list[str], flags: dict[str, str]) -> int:
    """Check that a file goes to all hosts of a ready slice."""
    source, target = names
    assert Path(source).exists() and ":" in target, names
    return 0 if is_ready(flags) else 255


def ssh(kind: str, names: list[str], flags: dict[str, str]) -> int:
    """Run the command of a setup or a training, and parse others."""
    if not is_ready(flags):
        return 255
    subprocess.run(["bash", "-n", "-c", flags["command"]], check=True)
    if "prepare_environment" in flags["command"]:
        return subprocess.run(["bash", "-c", flags["command"]], cwd=FAKE / "host").returncode
    if "scripts/train.py --distributed" not in flags["command"]:
        return 0
    subprocess.run(["bash", "-c", flags["command"]], cwd=FAKE / "host", check=True)
    status, *others = (FAKE / "statuses").read_text().split()
    (FAKE / "statuses").write_text("\n".join(others))
    if status == "255":
        set_state("PREEMPTED" if kind == "tpu-vm" else "SUSPENDED")
    return int(status)


def is_ready(flags: dict[str, str]) -> bool:
    """Return whether hosts can be reached; a command is for all of them."""
    assert flags["worker"] == flags.get("node", "all") == "all"
    return (FAKE / "state").read_text() in _READY


def set_state(state: str) -> None:
    """Set the state of the slice or the request."""
    (FAKE / "state").write_text(state)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
