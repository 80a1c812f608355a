"""Puts the gin files and the pages that messages name into the package; setup.cfg has the rest."""

import shutil

from setuptools import find_namespace_packages, find_packages, setup

GIN = "gin_configs"  # beside the package in a checkout, within it in a wheel

shutil.rmtree("build/lib", ignore_errors=True)  # an earlier build's, packed again otherwise
setup(
    packages=[
        *find_packages(include=["mnmt_jax", "mnmt_jax.*"]),
        "mnmt_jax.docs",
        *(f"mnmt_jax.{name}" for name in find_namespace_packages(include=[GIN, f"{GIN}.*"])),
    ],
    package_dir={f"mnmt_jax.{GIN}": GIN, "mnmt_jax.docs": "docs"},
    package_data={
        "": ["*.gin"],
        "mnmt_jax": ["py.typed"],
        "mnmt_jax.data.preparation": ["recipes/*.toml"],
        "mnmt_jax.papers": ["Snakefile", "*/*.toml"],
        "mnmt_jax.serving": ["page/*"],
        "mnmt_jax.vocabulary": ["*.toml"],
        "mnmt_jax.docs": ["*.md"],
    },
)
