"""A Kubernetes cluster with JobSet for tests: checks a manifest, and runs its pods on this machine.

It knows the fields that this project uses and refuses others, as the API server refuses unknown
fields. Pods fail and start again as the policies of Job and JobSet say.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,13}[a-z0-9]")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[^)]*)\)")
_HOST_PATHS = {"Directory", "DirectoryOrCreate"}
_MAX_NAME = 63
_SUFFIX = 6  # of a pod's name: a hyphen and five random characters
_REASONS = {"BackoffLimitExceeded", "PodFailurePolicy", "DeadlineExceeded"}
_ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
# Fields by place; `?` marks those that may be missing. A string is the only value.
_SCHEMA = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": str, "annotations?": dict},
    "spec": {
        "network": {"enableDNSHostnames": bool, "subdomain": str},
        "failurePolicy": {
            "maxRestarts": int,
            "rules": [{"name": str, "action": str, "onJobFailureReasons": [str]}],
        },
        "replicatedJobs": [
            {
                "name": str,
                "replicas": int,
                "template": {
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": int,
                        "parallelism": int,
                        "backoffLimit": int,
                        "podFailurePolicy": {
                            "rules": [
                                {
                                    "action": str,
                                    "onExitCodes": {
                                        "containerName": str,
                                        "operator": str,
                                        "values": [int],
                                    },
                                }
                            ]
                        },
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",  # as podFailurePolicy needs
                                "terminationGracePeriodSeconds": int,
                                "nodeSelector?": dict,
                                "serviceAccountName?": str,
                                "volumes": [
                                    {
                                        "name": str,
                                        "emptyDir?": {"medium": str},
                                        "persistentVolumeClaim?": {"claimName": str},
                                        "hostPath?": {"path": str, "type": str},
                                    }
                                ],
                                "containers": [
                                    {
                                        "name": str,
                                        "image": str,
                                        "command": [str],
                                        "env?": [{"name": str, "value": str}],
                                        "envFrom?": [{"secretRef": {"name": str}}],
                                        "resources": {"limits": dict},
                                        "ports": [{"name": str, "containerPort": int}],
                                        "volumeMounts": [{"name": str, "mountPath": str}],
                                    }
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def check_fields(value: Any, schema: Any, place: str = "") -> None:
    """Check that a value has the fields and types of a schema, and no others."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), f"{place} is no object: {value!r}"
        known = {name.removesuffix("?"): name for name in schema}
        assert not value.keys() - known.keys(), f"{place}: unknown {value.keys() - known.keys()}"
        for field, name in known.items():
            assert field in value or name.endswith("?"), f"{place}.{field} is missing"
            if field in value:
                check_fields(value[field], schema[name], f"{place}.{field}")
    elif isinstance(schema, list):
        assert isinstance(value, list) and value, f"{place} is no list with items: {value!r}"
        for number, item in enumerate(value):
            check_fields(item, schema[0], f"{place}[{number}]")
    elif isinstance(schema, type):
        assert type(value) is schema, f"{place} is {value!r}, no {schema.__name__}"
    else:
        assert value == schema, f"{place} is {value!r}, not {schema!r}"


@dataclasses.dataclass(frozen=True)
class JobSet:
    """A checked manifest.

    Attributes:
        manifest: the object of the API.
    """

    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, text: str) -> JobSet:
        """Read YAML, and check it as the API server and the controllers do."""
        (manifest,) = yaml.safe_load_all(text)
        check_fields(manifest, _SCHEMA)
        jobs = cls(manifest)
        jobs._check_names()
        jobs._check_volumes()
        jobs._check_policies()
        return jobs

    @property
    def job(self) -> Mapping[str, Any]:
        """The only replicated job."""
        (job,) = self.manifest["spec"]["replicatedJobs"]
        return job

    @property
    def pod(self) -> Mapping[str, Any]:
        """Specification of a pod."""
        return self.job["template"]["spec"]["template"]["spec"]

    @property
    def container(self) -> Mapping[str, Any]:
        """The only container of a pod."""
        (container,) = self.pod["containers"]
        return container

    @property
    def host_names(self) -> list[str]:
        """Host names of the pods, by slice and index."""
        job, name = self.job, self.manifest["metadata"]["name"]
        return [
            f"{name}-{job['name']}-{replica}-{index}"
            for replica in range(job["replicas"])
            for index in range(job["template"]["spec"]["completions"])
        ]

    @property
    def dns_names(self) -> list[str]:
        """Names by which the pods find one another."""
        network = self.manifest["spec"]["network"]
        assert network["enableDNSHostnames"]
        return [f"{host}.{network['subdomain']}" for host in self.host_names]

    def _check_names(self) -> None:
        for name in (self.manifest["metadata"]["name"], self.job["name"], *self.host_names):
            assert _NAME.fullmatch(name) and len(name) + _SUFFIX <= _MAX_NAME, name
        accounts = [self.pod["serviceAccountName"]] if "serviceAccountName" in self.pod else []
        secrets = [source["secretRef"]["name"] for source in self.container.get("envFrom", ())]
        assert all(_NAME.fullmatch(name) for name in (*accounts, *secrets))
        variables = [variable["name"] for variable in self.container.get("env", ())]
        assert len(set(variables)) == len(variables), f"a variable twice: {variables}"
        assert all(_VARIABLE.fullmatch(name) for name in variables), variables
        ports = [port["name"] for port in self.container["ports"]]
        assert len(set(ports)) == len(ports) and all(map(_PORT_NAME.fullmatch, ports))

    def _check_volumes(self) -> None:
        volumes = {volume["name"] for volume in self.pod["volumes"]}
        mounts = self.container["volumeMounts"]
        assert {mount["name"] for mount in mounts} == volumes
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts) == len(volumes)
        for volume in self.pod["volumes"]:
            assert len(volume) == 2, f"a volume has a name and one source: {volume}"
            if "hostPath" in volume:
                path = volume["hostPath"]
                assert path["path"].startswith("/") and path["type"] in _HOST_PATHS, path

    def _check_policies(self) -> None:
        spec = self.job["template"]["spec"]
        assert spec["completions"] == spec["parallelism"] > 0  # all at the same time
        for rule in spec["podFailurePolicy"]["rules"]:
            codes = rule["onExitCodes"]
            assert rule["action"] in ("FailJob", "Ignore", "Count")
            assert codes["containerName"] == self.container["name"]
            assert codes["operator"] in ("In", "NotIn")
            assert codes["values"] == sorted(set(codes["values"])) and 0 not in codes["values"]
        for rule in self.manifest["spec"]["failurePolicy"]["rules"]:
            assert _RULE_NAME.fullmatch(rule["name"])
            assert rule["action"] in _ACTIONS and set(rule["onJobFailureReasons"]) <= _REASONS

    def variables(self) -> dict[str, str]:
        """Return the variables of `env` with references to earlier ones replaced."""
        variables: dict[str, str] = {}
        for variable in self.container.get("env", ()):
            variables[variable["name"]] = _expand(variable["value"], variables)
        return variables

    def command(self) -> list[str]:
        """Return the command of a container with references to variables of `env` replaced."""
        variables = self.variables()
        return [_expand(word, variables) for word in self.container["command"]]

    def start_pods(self, environment: Mapping[str, str]) -> list[subprocess.Popen[str]]:
        """Start a process for each pod, with the variables that Kubernetes sets."""
        completions = self.job["template"]["spec"]["completions"]
        return [
            subprocess.Popen(
                self.command(),
                env={
                    **environment,
                    **self.variables(),
                    "PATH": os.environ["PATH"],
                    "HOSTNAME": host,
                    "JOB_COMPLETION_INDEX": str(number % completions),
                },
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, host in enumerate(self.host_names)
        ]

    def failure_action(self, statuses: Sequence[int]) -> str | None:
        """Return what JobSet does after pods ended with these statuses; None if none failed."""
        if not any(statuses):
            return None
        assert self.job["template"]["spec"]["backoffLimit"] == 0  # the first failure ends the job
        rules = self.job["template"]["spec"]["podFailurePolicy"]["rules"]
        matches = any(_matches(rule, status) for rule in rules for status in statuses)
        reason = "PodFailurePolicy" if matches else "BackoffLimitExceeded"
        for rule in self.manifest["spec"]["failurePolicy"]["rules"]:
            if reason in rule["onJobFailureReasons"]:
                return rule["action"]
        return "RestartJobSet"

    def run(self, environment: Mapping[str, str], attempts: Path) -> tuple[str, int]:
        """Start the pods until the JobSet has completed or failed.

        Args:
            environment: variables of the pods.
            attempts: file to which each attempt's number is written for the pods.

        Returns:
            `Completed` or `Failed`, and how often the pods were started.
        """
        for attempt in range(self.manifest["spec"]["failurePolicy"]["maxRestarts"] + 1):
            attempts.write_text(str(attempt))
            pods = self.start_pods(environment)
            for pod in pods:
                pod.communicate()
            action = self.failure_action([pod.returncode for pod in pods])
            if action is None:
                return "Completed", attempt + 1
            if action == "FailJobSet":
                break
        return "Failed", attempt + 1


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by a known variable's value, and `$$` by `$`, as Kubernetes does."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match["name"], match[0])

    return _REFERENCE.sub(replacement, text)


def _matches(rule: Mapping[str, Any], status: int) -> bool:
    codes = rule["onExitCodes"]
    if rule["action"] != "FailJob" or status == 0:
        return False
    return (status in codes["values"]) == (codes["operator"] == "In")
