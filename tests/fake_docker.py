"""`docker build` for tests: reads a Dockerfile, and runs its steps in a folder of this machine.

It knows the instructions that this project uses and refuses others. The base image is not loaded:
`RUN` uses the commands of `PATH`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_STEPS = ("ARG", "COPY", "ENV", "FROM", "RUN", "WORKDIR")
_STATED = ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "USER", "VOLUME")
_REFERENCE = re.compile(r"\$\{(\w+)\}")
# Name and tag of an image of the default registry.
_PLAIN_IMAGE = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*(:[\w][\w.-]*)?")


@dataclasses.dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        base: name of the image that it starts from.
        folder: working directory, as a path in the image.
        variables: environment of its containers, without `PATH`.
        stated: text of each instruction about its containers, such as `USER`.
    """

    base: str
    folder: str
    variables: Mapping[str, str]
    stated: Mapping[str, str]


def build(
    dockerfile: Path, context: Path, target: Path, *, path: str, arguments: Mapping[str, str]
) -> Image:
    """Build an image.

    Args:
        dockerfile: the recipe; `NAME.dockerignore` beside it lists what is not copied.
        context: folder that `COPY . .` copies.
        target: empty folder that takes the place of the working directory.
        path: `PATH` of the commands.
        arguments: `--build-arg`.
    """
    variables, base, folder, used = {"PATH": path}, "", "", set()
    environment, stated = dict[str, str](), dict[str, str]()
    for instruction, text in _instructions(dockerfile):
        if instruction == "ARG":
            name, _, default = text.partition("=")
            used.add(name)
            variables[name] = arguments.get(name, default)
            continue
        if instruction == "ENV":
            name, _, value = text.partition("=")
            variables[name] = environment[name] = value
            continue
        if instruction in _STATED:
            stated[instruction] = text
            continue
        if instruction == "FROM":
            base = _expand(text, variables)
            assert _PLAIN_IMAGE.fullmatch(base), f"{base!r} is no plain name of an image"
            variables = {"PATH": path}  # arguments before FROM are unknown after it
        elif instruction == "WORKDIR":
            assert text.startswith("/"), text
            folder = text
        elif instruction == "COPY":
            assert base and folder and text == ". .", text
            _copy(context, target, dockerfile.with_name(f"{dockerfile.name}.dockerignore"))
        else:
            subprocess.run(["sh", "-c", text], cwd=target, env=variables, check=True)
    assert arguments.keys() <= used, f"unknown arguments: {arguments.keys() - used}"
    return Image(base, folder, environment, stated)


def _instructions(dockerfile: Path) -> list[tuple[str, str]]:
    lines = dockerfile.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    pairs = [(name, text.strip()) for name, _, text in (line.partition(" ") for line in lines)]
    assert all(name in (*_STEPS, *_STATED) and not text.endswith("\\") for name, text in pairs), (
        pairs
    )
    return pairs


def _expand(text: str, variables: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: variables[match[1]], text)


def _copy(context: Path, target: Path, ignore_file: Path) -> None:
    """Copy a folder without the files that a pattern of the ignore file matches."""
    patterns = ignore_file.read_text(encoding="utf-8").splitlines()
    assert patterns and not any(pattern.startswith(("/", "!")) for pattern in patterns)

    def ignored(folder: str, names: list[str]) -> list[str]:
        inside = Path(folder).relative_to(context)
        return [name for name in names if _matches((inside / name).as_posix(), patterns)]

    shutil.copytree(context, target, ignore=ignored, dirs_exist_ok=True, symlinks=True)


def _matches(path: str, patterns: list[str]) -> bool:
    anywhere = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]
    return path in patterns or any(
        fnmatch.fnmatch(Path(path).name, pattern) for pattern in anywhere
    )
