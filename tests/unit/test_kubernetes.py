"""The JobSet of scripts/kubernetes/jobset.sh, checked and run by a fake cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.commands.common_flags import parse_command_line
from mnmt_jax.commands.train import make_parser
from mnmt_jax.config.loading import load_config
from tests.fake_kubernetes import JobSet

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "kubernetes" / "jobset.sh"
GPU = {"NAME": "mine", "IMAGE": "registry/image:1", "HOSTS": "2", "GPUS": "8"}
TPU = {"NAME": "mine", "IMAGE": "i", "HOSTS": "4", "TPU": "tpu-v5-lite-podslice", "TOPOLOGY": "4x4"}
ARGUMENTS = ("--gin.Data.cache='/a b'", '--gin.Train.methods=("x",)', "--workdir=$HOME/it's $(A)")
# Writes down its arguments and ends with the status that the test planned for this attempt.
PYTHON = f"""#!{sys.executable}
import json, os, pathlib, sys
fake = pathlib.Path(os.environ["FAKE"])
attempt, index = int((fake / "attempt").read_text()), int(os.environ["JOB_COMPLETION_INDEX"])
call = {{"argv": sys.argv[1:], "flags": os.environ["XLA_FLAGS"], "folder": os.getcwd()}}
call["variables"] = dict(os.environ)
(fake / f"call-{{attempt}}-{{os.environ['HOSTNAME']}}").write_text(json.dumps(call))
sys.exit(json.loads((fake / "statuses").read_text())[attempt][index])
"""


def jobset(command: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", SCRIPT, command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def printed(*arguments: str, **variables: str) -> JobSet:
    done = jobset("print", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return JobSet.read(done.stdout)


@pytest.fixture
def image(tmp_path) -> Path:
    """Make a folder like the checkout in an image, with an interpreter that only writes."""
    folder = tmp_path / "image"
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    return folder


def calls(folder: Path) -> dict[str, dict]:
    """Return the calls of the interpreter by attempt and host."""
    files = sorted(folder.glob("call-*"))
    return {path.name.removeprefix("call-"): json.loads(path.read_text()) for path in files}


def test_pods_with_gpus_find_the_first_and_have_their_numbers(image, tmp_path):
    jobs = printed(*ARGUMENTS, **GPU, FOLDER=str(image))
    (tmp_path / "statuses").write_text("[[0, 0]]")
    assert jobs.run({"FAKE": str(tmp_path)}, tmp_path / "attempt") == ("Completed", 1)
    actual = calls(tmp_path)
    assert [*actual] == ["0-mine-hosts-0-0", "0-mine-hosts-0-1"]
    for number, call in enumerate(actual.values()):
        script, address, count, index, *rest = call["argv"]
        assert (script, count, index) == (
            "scripts/train.py",
            "--num_processes=2",
            f"--process_id={number}",
        )
        assert tuple(rest) == ARGUMENTS
        assert Path(call["folder"]) == image
        assert "--xla_gpu_enable_latency_hiding_scheduler=true" in call["flags"]
    host, port = address.removeprefix("--coordinator_address=").split(":")
    assert host == jobs.dns_names[0]
    assert int(port) in [item["containerPort"] for item in jobs.container["ports"]]
    assert jobs.container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_slices_of_tpus_are_found_by_jax(image, tmp_path):
    jobs = printed("--workdir=gs://b/r", **TPU, SLICES="2", FOLDER=str(image))
    assert len(jobs.host_names) == 8 and jobs.job["replicas"] == 2
    (tmp_path / "statuses").write_text("[[0, 0, 0, 0]]")
    assert jobs.run({"FAKE": str(tmp_path)}, tmp_path / "attempt") == ("Completed", 1)
    expected = ["scripts/train.py", "--distributed", "--workdir=gs://b/r"]
    assert [call["argv"] for call in calls(tmp_path).values()] == [expected] * 8
    assert jobs.pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert jobs.container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert jobs.manifest["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    assert 8482 in [port["containerPort"] for port in jobs.container["ports"]]  # JAX's


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([[75, 137], [143, 143], [75, -15], [0, 0]], ("Completed", 4)),
        ([[75, 2], [0, 0]], ("Failed", 1)),  # an error of one process, of which the others end
        ([[1, 75], [0, 0]], ("Failed", 1)),
        ([[75, 75]] * 9, ("Failed", 4)),  # RESTARTS=3
    ],
)
def test_pods_start_again_after_recoverable_statuses(statuses, expected, image, tmp_path):
    jobs = printed(**GPU, FOLDER=str(image), RESTARTS="3")
    plan = [[128 - status if status < 0 else status for status in row] for row in statuses]
    (tmp_path / "statuses").write_text(json.dumps(plan))
    assert jobs.run({"FAKE": str(tmp_path)}, tmp_path / "attempt") == expected


def test_storage_that_pods_share_is_mounted():
    jobs = printed(**GPU, VOLUME="claim")
    assert {"name": "shared", "persistentVolumeClaim": {"claimName": "claim"}} in jobs.pod[
        "volumes"
    ]
    assert {"name": "shared", "mountPath": "/shared"} in jobs.container["volumeMounts"]
    assert len(printed(**GPU).pod["volumes"]) == 1


def test_pods_have_the_named_variables(image, tmp_path):
    here = {"MNMT_JAX_CACHE_FOLDER": "/mnt/here", "MNMT_JAX_CACHE_GIB": "300", "HERE": "$(A) $HOME"}
    flags = ("--env", "A=b=$(HERE) it's", "--workdir=gs://b/r", "--env=HERE", "--env=NO=")
    flags += ("--env=MNMT_JAX_CACHE_FOLDER=/local/mnmt",)
    jobs = printed(*flags, **GPU, **here, FOLDER=str(image))
    (tmp_path / "statuses").write_text("[[0, 0]]")
    assert jobs.run({"FAKE": str(tmp_path)}, tmp_path / "attempt") == ("Completed", 1)
    expected = {
        "A": "b=$(HERE) it's",
        "HERE": "$(A) $HOME",
        "NO": "",
        "MNMT_JAX_CACHE_FOLDER": "/local/mnmt",
        "MNMT_JAX_CACHE_GIB": "300",
    }
    for call in calls(tmp_path).values():
        assert call["variables"].items() >= expected.items()
        assert call["argv"][-1] == "--workdir=gs://b/r" and "--env" not in str(call["argv"])
    assert "env" not in printed(**GPU).container


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--env",), "error: --env : must be NAME=VALUE, or the NAME of a variable"),
        (("--env", "--workdir=x"), "error: --env --workdir=x: must be NAME=VALUE"),
        (("--env=A B=c",), "error: --env A B=c: must be NAME=VALUE"),
        (("--env=NOPE",), "error: --env NOPE: is not set here; pass --env NOPE=VALUE"),
    ],
)
def test_a_wrong_variable_of_the_pods_prints_no_jobset(flags, message):
    done = jobset("print", *flags, **GPU)
    assert done.returncode == 2 and done.stderr.startswith(message)
    assert not done.stdout and len(done.stderr.splitlines()) == 1


def test_pods_run_as_an_account_with_secrets_and_a_local_disk():
    jobs = printed(**TPU, SERVICE_ACCOUNT="trainer", SECRET="keys", LOCAL="/mnt/disks/ssd0")
    assert jobs.pod["serviceAccountName"] == "trainer"
    assert jobs.container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    volume = {
        "name": "local",
        "hostPath": {"path": "/mnt/disks/ssd0", "type": "DirectoryOrCreate"},
    }
    assert volume in jobs.pod["volumes"]
    assert {"name": "local", "mountPath": "/local"} in jobs.container["volumeMounts"]
    plain = printed(**TPU)
    assert "serviceAccountName" not in plain.pod and "envFrom" not in plain.container


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("serviceAccountName: 'trainer'", "serviceAccountName: 'Trainer'"),
        ("serviceAccountName:", "serviceAccount:"),
        ("{name: 'A',", "{name: 'B',"),
        ("value: '1'", "value: 1"),
        ("{name: 'A',", "{name: '1 A',"),
        ("{secretRef:", "{secret:"),
        ("type: DirectoryOrCreate", "type: Folder"),
        ("mountPath: /local", "mountPath: /dev/shm"),
    ],
)
def test_the_fake_cluster_refuses_what_a_cluster_does(before, after):
    variables = {"SERVICE_ACCOUNT": "trainer", "SECRET": "keys", "LOCAL": "/mnt"}
    text = jobset("print", "--env=A=1", "--env=B=2", **GPU, **variables).stdout
    JobSet.read(text)
    assert text.count(before) == 1
    with pytest.raises(AssertionError):
        JobSet.read(text.replace(before, after))


def documented_trainings() -> list[str]:
    """Return the commands of docs/scale.md that start a JobSet, with their exports."""
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    exports = [line for block in blocks for line in block.splitlines() if line[:7] == "export "]
    trainings = [block for block in blocks if "jobset.sh train" in block]
    return ["\n".join(exports) + "\n" + block for block in trainings]


@pytest.mark.parametrize(("number", "hosts"), [(0, 2), (1, 8)])
def test_documented_commands_start_a_jobset(number, hosts):
    command = documented_trainings()[number].replace("jobset.sh train", "jobset.sh print")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    jobs = JobSet.read(done.stdout)
    assert len(jobs.host_names) == hosts and jobs.pod["serviceAccountName"] == "trainer"
    _, _, script, _, *arguments = jobs.command()
    assert "scripts/train.py" in script
    with contextlib.chdir(ROOT):
        flags, gin_files, bindings = parse_command_line(make_parser(), arguments)
        config = load_config(gin_files, bindings)
    assert flags.workdir == "gs://my-bucket/runs/mine" and len(gin_files) == 2
    assert config.data.cache == "gs://my-bucket/cache" and config.data.rows == 512
    if number == 0:
        assert jobs.variables()["MNMT_JAX_CACHE_FOLDER"] == "/local"
        assert {"name": "local", "mountPath": "/local"} in jobs.container["volumeMounts"]


def test_kubectl_receives_the_printed_jobset_and_deletes_it(tmp_path):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        '#!/bin/sh\necho "$*" >> "$FAKE/calls"\n[ "$1" = delete ] || cat > "$FAKE/in"\n'
    )
    kubectl.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAKE": str(tmp_path)}
    assert jobset("train", *ARGUMENTS, **GPU | variables).returncode == 0
    assert (tmp_path / "in").read_text() == jobset("print", *ARGUMENTS, **GPU).stdout
    assert jobset("delete", NAME="mine", **variables).returncode == 0
    assert (tmp_path / "calls").read_text().splitlines() == [
        "apply -f -",
        "delete jobset mine --ignore-not-found",
    ]


@pytest.mark.parametrize(
    ("missing", "variables", "message"),
    [
        ("NAME", GPU, "error: NAME, the name of the JobSet, is not set"),
        ("IMAGE", GPU, "IMAGE: image with the checkout in /mnmt-jax"),
        ("GPUS", GPU, "GPUS: number of GPUs of a host; for TPUs set TPU and TOPOLOGY"),
        ("TOPOLOGY", TPU, "TOPOLOGY: topology of a slice"),
        ("", GPU | {"SLICES": "2"}, "error: SLICES=2 needs TPU"),
        ("", TPU | {"HOSTS": "3"}, "error: HOSTS=3 of CHIPS=4 do not make TOPOLOGY=4x4"),
    ],
)
def test_a_missing_variable_starts_nothing(missing, variables, message, tmp_path):
    (tmp_path / "kubectl").write_text('#!/bin/sh\ntouch "$FAKE/called"\n')
    (tmp_path / "kubectl").chmod(0o755)
    present = {name: value for name, value in variables.items() if name != missing}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = jobset("train", **present | {"PATH": path, "FAKE": str(tmp_path)})
    assert done.returncode and message in done.stderr
    assert not (tmp_path / "called").exists()


def test_an_unknown_command_is_one_error_line():
    done = jobset("fly", NAME="mine")
    line = "error: fly: must be print, train or delete; --help shows an example\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_help_shows_the_head_of_the_script():
    done = jobset("--help")
    assert done.returncode == 0 and "export NAME=mine IMAGE=" in done.stdout
