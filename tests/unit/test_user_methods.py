"""Mistakes in methods and kinds of users' own modules: one line that names class and remedy."""

from __future__ import annotations

import dataclasses
import sys
from typing import ClassVar

import jax
import numpy as np
import pytest
from flax import linen as nn

from mnmt_jax.commands import adapters, add_language, export_checkpoint
from mnmt_jax.commands.common_flags import import_modules
from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.describe import describe
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Intermediate, States
from mnmt_jax.design.plan import Kind, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import record
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import SelfAttention
from mnmt_jax.runs.new_run import write_run
from tests.applied import apply
from tests.sample_batches import VOCAB, make, random_pairs, small_config, unpacked
from tests.unit.made_text import vocabulary as made_vocabulary


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


class Bias(nn.Module, Kind):
    """A vector for each of two target languages; `fault` is the mistake."""

    fault: str = ""
    component = "bias"
    has_dropout = True

    @property
    def languages(self):
        return () if self.fault == "languages" else ("target_lang",)

    @property
    def axes(self):
        axes = {"no axes": {}, "axis": {"vectors": ("languages", "embed")}}
        return axes.get(self.fault, {"vectors": ("slot", "embed")[self.fault == "rank" :]})

    @nn.compact
    def change(self, states, info):
        vectors = self.param("vectors", nn.initializers.ones, (2, states.shape[-1]))
        bias = vectors[info.language("target_lang")]
        record(self, info, "bias", bias)
        if self.fault == "tag":
            info.tag("target_lang")
        if self.fault == "states_after":
            info.states_after(1)
        return bias


class Empty(nn.Module, Kind):
    """A kind without members."""


class WithoutComponent(nn.Module, Kind):
    """A kind that is counted under no name."""

    axes: ClassVar = {"vectors": ("channel",) * 3}

    @nn.compact
    def change(self, states, info):
        return states * self.param("vectors", nn.initializers.ones, (1, 1, states.shape[-1]))


BARE = {"change": Empty(), "component": WithoutComponent()}


@dataclasses.dataclass(frozen=True)
class Biased(Method):
    """A bias before the first layer; not registered."""

    name: ClassVar[str] = "biased"
    fault: str = ""

    def edit(self, plan, config):
        kind = BARE.get(self.fault) or Bias(self.fault)
        bias = Sublayer("bias", kind, roles=("source",))
        return plan.with_layers(lambda number, layer: (bias, *layer) if number == 1 else layer)


AXES = "length, embed, channel, mlp, heads, kv, rank, vocab, slot"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no axes", f"parameter 'layer_0/bias/vectors' has unknown axes.* one of {AXES}$"),
        ("axis", f"parameter 'layer_0/bias/vectors': .* the axis 'languages'; there are {AXES}$"),
        ("rank", "parameter 'layer_0/bias/vectors' has shape .2, 16., but 1 axes"),
        ("languages", "a layer asks for 'target_lang': name it in `languages` of its Kind"),
        ("tag", "a layer asks for the tag of 'target_lang': .* set `tags` to the number"),
        ("component", "WithoutComponent has no `component`; name what it counts as"),
        ("change", "Empty has no method `change.states, info.`; define it"),
        ("states_after", "a layer asks for the states after layer 1: only .*`StagePlan.before`"),
    ],
)
def test_describe_refuses_mistakes_of_a_kind(fault, message):
    config = small_config("encoder_decoder", methods=(Biased(fault),))
    with pytest.raises(UserError, match=message):
        describe(config, VOCAB, source_length=4, target_length=4, beam=1)


@pytest.mark.parametrize(
    ("request_", "read", "message"),
    [
        (Intermediate("layer_0/bias/bais"), None, "did you mean 'layer_0/bias/bias'.*there are la"),
        (Intermediate("layer_0/bias/bias", "target"), None, "'target'.: no sublayer .*'target' th"),
        (Intermediate("layer_0/bias/bias"), States(1), "reads States.*`Objective.inputs` too"),
    ],
)
def test_requests_that_nothing_answers_name_what_there_is(request_, read, message):
    model = build_model(small_config("encoder_decoder", methods=(Biased(),)), VOCAB)
    batch = unpacked(LAYOUTS["encoder_decoder"], random_pairs(2), languages=True)

    def run(batch):
        params = model.init(jax.random.key(0), batch)["params"]
        return ForwardPasses(model, params, batch, requests=[request_]).read(read or request_)

    with pytest.raises(UserError, match=message):
        jax.eval_shape(run, batch)


def test_the_helpers_of_docs_methods_are_enough_for_a_kind_with_languages():
    model, params = make(small_config("encoder_decoder", methods=(Biased(),)))
    batch = unpacked(LAYOUTS["encoder_decoder"], random_pairs(8), languages=True)
    assert (batch["source_lang"] + batch["target_lang"] == 1).all()
    assert {*batch["target_lang"][:, 0]} == {0, 1}
    vectors = np.asarray(params["layer_0"]["bias"]["vectors"])
    logits = apply(model, params, batch)
    params["layer_0"]["bias"]["vectors"] = vectors[::-1]
    other = batch | {"target_lang": batch["source_lang"]}
    np.testing.assert_allclose(apply(model, params, other), logits, atol=1e-6)
    assert np.abs(apply(model, params, batch) - logits).max() > 1e-3


class Sharper(SelfAttention):
    """Self-attention with larger scores."""

    factor: float = 2.0

    def project_queries(self, states):
        return self.factor * super().project_queries(states)


@dataclasses.dataclass(frozen=True)
class Sharpened(Method):
    """Sharper attention in the first layer; not registered."""

    name: ClassVar[str] = "sharpened"

    def edit(self, plan, config):
        def edited(number, layer):
            (attention, *rest) = layer
            sharper = dataclasses.replace(attention, kind=Sharper(attention.kind.config))
            return (sharper, *rest) if number == 1 else layer

        return plan.with_layers(edited)


def test_an_own_attention_in_an_own_layout(monkeypatch):
    """The first position of a causal encoder reads itself only, and so is not changed by it."""
    encoder, decoder = LAYOUTS["encoder_decoder"].stages
    causal = dataclasses.replace(encoder, sees=("c",))
    monkeypatch.setitem(LAYOUTS, "own", Layout("own", (causal, decoder)))
    plain, params = make(small_config("own"))
    sharper, _ = make(small_config("own", methods=(Sharpened(),)))
    batch = unpacked(LAYOUTS["own"], random_pairs(3))
    doubled = jax.tree.map(np.asarray, params)
    query = doubled["layer_0"]["attention"]["query"]
    query |= {name: 2 * array for name, array in query.items()}
    np.testing.assert_allclose(
        apply(sharper, params, batch), apply(plain, doubled, batch), atol=1e-5
    )

    def states(model):
        passes = ForwardPasses(model, params, batch, requests=[States(2)])
        return np.asarray(passes.read(States(2)))

    before, after = states(plain), states(sharper)
    np.testing.assert_allclose(after[:, 0], before[:, 0], atol=1e-6)
    assert np.abs(after[:, 1] - before[:, 1]).max() > 1e-4


MODULE = """
import dataclasses
from mnmt_jax.design.method import Method

@dataclasses.dataclass(frozen=True)
class Told(Method, name="told"):
    weight: float = 0.5
"""


def test_commands_without_gin_flags_read_runs_with_own_methods(tmp_path, monkeypatch, registered):
    """`adapters`, `export` and `add-language` import the module, as training does."""
    (tmp_path / "module_of_told.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    import_modules(["module_of_told"])
    model = small_config("register", lora_rank=2)
    config = load_config([], ["Train.methods=('told',)", "Data.instruction='register'"])
    vocabulary = made_vocabulary()
    params = jax.tree.map(
        lambda leaf: LazyArray.of(np.ones(leaf.shape, np.float32)),
        parameter_shapes(model, vocabulary.size),
    )
    config = dataclasses.replace(config, model=model)
    write_run(tmp_path / "run", config, vocabulary, params, origin=("here", "made"))

    def run(command, *flags):
        monkeypatch.setattr(Method, "registered", {})
        sys.modules.pop("module_of_told", None)
        monkeypatch.setattr(sys, "argv", ["mnmt", *flags])
        command.main()

    with pytest.raises(UserError, match="Told: no such name; .*needs --module_import"):
        run(adapters, "merge", "--run=run", "--output=merged")
    imported = "--module_import=module_of_told"
    run(adapters, "save", "--run=run", "--output=adapter", imported)
    run(adapters, "merge", "--run=run", "--output=merged", imported)
    run(adapters, "load", "--run=merged", "--adapter=adapter", "--output=loaded", imported)
    run(export_checkpoint, "--run=merged", "--output=exported", imported)
    new = ("--language=nl", "--keep_pieces", "--output=new")
    run(add_language, "--run=merged", *new, imported)
    assert "Told.weight" in (tmp_path / "new" / "config.gin").read_text(encoding="utf-8")
