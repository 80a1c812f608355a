"""Mistakes in methods and kinds of users' own modules: one line that names class and remedy."""

from __future__ import annotations

import dataclasses

import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.design.method import Method
from mnmt_jax.errors import UserError


@pytest.fixture
def registered(monkeypatch):
    """Forget the methods of a test after it."""
    monkeypatch.setattr(Method, "registered", dict(Method.registered))


def bridged(kind, **attributes):
    """Register the method `bridged` with a field `bridge` of a type."""
    namespace = {
        "__module__": __name__,
        "__annotations__": {"languages": tuple[str, ...], "bridge": kind},
        "languages": (),
        "bridge": "en" if kind is str else ("en",),
        **attributes,
    }
    cls = type("Bridged", (Method,), namespace, name="bridged")
    return dataclasses.dataclass(frozen=True)(cls)


@pytest.mark.parametrize(
    ("kind", "attributes", "message"),
    [
        (str, {"code_fields": ("bridge",)}, "Bridged.code_fields names 'bridge': declare it as a"),
        (str, {"languages_field": "bridge"}, "Bridged.languages_field names 'bridge': declare it"),
        (str, {"code_fields": ("bridges",)}, "code_fields names 'bridges': .* tuple.str, ...."),
        (tuple[str, ...], {"code_fields": "bridge"}, r"code_fields='bridge' must be a tuple, .*',"),
    ],
)
def test_fields_of_codes_are_tuples(kind, attributes, message, registered):
    bridged(kind, **attributes)
    with pytest.raises(UserError, match=message):
        load_config([], ["Train.methods=('bridged',)"])


def test_fields_of_codes_are_matched_to_the_vocabulary(registered):
    bridged(tuple[str, ...], languages_field="languages", code_fields=("bridge",))
    config = load_config([], ["Train.methods=('bridged',)", "Bridged.bridge=('EN',)"])
    (method,) = config.bind_languages(("de", "en"), lambda code, _: code.lower()).methods
    assert (method.languages, method.bridge) == (("de", "en"), ("en",))
