"""FLOPs against the compiler's count, and descriptions of the tiny models."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Model
from mnmt_jax.cost.describe import count_parameters, describe
from mnmt_jax.cost.state_memory import count_state_bytes
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS
from mnmt_jax.design.plan import Sublayer
from mnmt_jax.model.flops import Sentence, cache_bytes, forward_flops, train_flops
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import FeedForward
from mnmt_jax.model.trainable_params import Trainable, join
from tests.made_run import make_config
from tests.random_params import random_params
from tests.sample_batches import (
    VOCAB,
    make,
    pack,
    random_pairs,
    small_config,
    spans_of,
    unpacked,
)
from tests.toy_heads import TwoHeads

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "methods"), [(name, ()) for name in LAYOUTS] + [("register", (TwoHeads(1),))]
)
def test_flops_equal_the_compilers_count(name, methods):
    """The unrolled step's compiled FLOPs are the analytic count: dead work is really removed."""
    layers = (3,) * len(LAYOUTS[name].stages)
    config = small_config(name, embed=64, mlp=128, heads=4, stage_layers=layers, methods=methods)
    layout = LAYOUTS[name].with_layers(config.stage_layers)
    sentence = Sentence(source=32, target=24)
    pair = ([3] * 30, [4] * 23, 15)
    spans = spans_of(layout, *pair)
    batch = pack([[spans]], {role: len(tokens) for role, tokens in spans.items()})
    model, params = make(config)
    compiled = jax.jit(lambda p, b: model.apply({"params": p}, b)).lower(params, batch).compile()
    executed = compiled.cost_analysis()["flops"]
    counted = forward_flops(config, layout, VOCAB, sentence)
    # The compiler also counts softmax, norms and residuals: a few per cent at this width.
    assert counted < executed < 1.10 * counted


@pytest.mark.parametrize(
    ("lora_rank", "frozen"), [(0, ()), (0, ("embedding", "attention")), (8, ())]
)
def test_training_flops_exclude_gradients_of_frozen_parameters(lora_rank, frozen):
    config = small_config(
        "register", embed=64, mlp=128, heads=4, stage_layers=(3,), lora_rank=lora_rank
    )
    layout = LAYOUTS["register"].with_layers(config.stage_layers)
    spans = spans_of(layout, [3] * 30, [4] * 23, 15)
    batch = pack([[spans]], {role: len(tokens) for role, tokens in spans.items()})
    model = build_model(config, VOCAB)
    rule = Trainable(frozen, config.lora if lora_rank else ())

    def loss(part, rest, batch):
        return (model.apply({"params": join(part, rest)}, batch) ** 2).sum()

    parts = rule.split(random_params(model))
    executed = jax.jit(jax.grad(loss)).lower(*parts, batch).compile().cost_analysis()["flops"]
    sizes = config, layout, VOCAB, Sentence(32, 24)
    assert 1 < executed / train_flops(*sizes, trainable=rule) < 1.10
    assert (train_flops(*sizes, trainable=rule) < 0.9 * train_flops(*sizes)) == bool(
        frozen or lora_rank
    )


def test_register_decoding_caches_no_source():
    config = small_config("register", embed=64, heads=4, register_factor=2.0)
    layout = LAYOUTS["register"].with_layers((3,))
    sizes = cache_bytes(config, layout, Sentence(source=10, target=7), beam=5)
    assert sizes == {
        "static": 3 * 5 * 2 * 64 * 4,
        "memory": 0,
        "growing": 3 * 5 * 7 * 2 * 64 * 4,
        "total": 3 * (5 + 35) * 2 * 64 * 4,
    }


def test_liveness_of_the_register_layout():
    live = build_model(small_config("register", stage_layers=(4,)), VOCAB).plan.live_roles()
    full = {"source", "register", "target"}
    assert [set(roles) for roles in live] == [full, full, {"register", "target"}, {"target"}]


def test_a_sublayer_may_have_the_name_of_a_parameter():
    """Norms have a parameter `scale`, which is theirs whatever sublayers are called."""
    counts = {}
    for name in ("scale", "stretch"):
        model = build_model(small_config("prefix"), VOCAB)
        sublayer = Sublayer(name, FeedForward(model.config, 8, component="stretch"))
        plan = model.plan.with_layers(lambda number, layer, extra=sublayer: (*layer, extra))
        batch = unpacked(plan.layout, random_pairs(1))
        shapes = jax.eval_shape(model.clone(plan=plan).init, jax.random.key(0), batch)["params"]
        counts[name] = count_parameters(shapes, plan)
    assert counts["scale"] == counts["stretch"]
    assert counts["scale"]["stretch"] > 0


def test_description_is_json():
    actual = describe(small_config("prefix"), VOCAB, source_length=8, target_length=4, beam=2)
    assert json.loads(json.dumps(actual))["flops_per_target_token"]["train"] > 0


@pytest.mark.parametrize("layout", LANGUAGE_MODELS)
def test_cache_sizes_of_language_models(layout):
    """A causal model caches one hypothesis: keys and values of 3 layers and 4 positions."""
    config = Model(layout, (3,), embed=64, mlp=128, heads=4)
    actual = describe(config, VOCAB, source_length=8, target_length=4, beam=5)
    assert actual["lengths"] == {"source": 8, "target": 4}
    keys = actual.get("key_value_bytes_per_sentence")
    assert keys is None if layout == "masked_lm" else keys["total"] == 3 * 4 * 2 * 64 * 4


# tests/unit/test_configurations.py counts the published ones.
GIN_FILES = sorted((ROOT / "gin_configs" / "models").glob("*_tiny.gin"))


@pytest.mark.parametrize("path", GIN_FILES, ids=lambda path: path.stem)
def test_every_tiny_model_file_is_described(path):
    config = load_config([str(path)])
    actual = describe(
        config.model, config.model.vocab_size or 1000, source_length=8, target_length=8, beam=4
    )
    counts = dict(actual["parameters"])
    frozen = Trainable.from_config(config.model, config.optimizer).frozen
    assert (counts.pop("learnable") == counts["total"]) == (not frozen) and counts["total"] > 0
    assert sum(counts.values()) == 2 * counts["total"]
    assert actual["layout"] == config.model.layout


def test_describe_command():
    assert len(GIN_FILES) >= 5
    command = [
        sys.executable,
        "scripts/describe.py",
        f"--gin_file={GIN_FILES[0]}",
        "--vocab_size=100",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout)["vocabulary"] == 100
    refused = subprocess.run(command[:2], capture_output=True, text=True, cwd=ROOT, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--gin_file" in refused.stderr


@pytest.mark.parametrize(
    ("optimizer", "per_kernel", "per_other", "average"),
    [
        ({}, 8, 8, 0),
        ({"name": "muon"}, 4, 8, 0),
        ({"name": "schedule_free", "schedule": "constant"}, 8, 8, 4),
        ({"ema_decay": 0.9}, 8, 8, 4),
        ({"frozen": ("embedding",)}, 8, 8, 0),
    ],
)
@pytest.mark.usefixtures("relaxed_dtypes")
def test_state_bytes_are_those_of_moments_and_averages(optimizer, per_kernel, per_other, average):
    config = make_config(Path("cache"), optimizer=optimizer)
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(config.model, VOCAB))
    sizes = {jax.tree_util.keystr(path): leaf.size for path, leaf in leaves}
    trained = {n: size for n, size in sizes.items() if "frozen" not in optimizer or "emb" not in n}
    kernels = sum(size for name, size in trained.items() if "kernel" in name)
    others = sum(trained.values()) - kernels
    assert kernels > 1000 and others > 100
    actual = count_state_bytes(config, VOCAB)
    total = sum(sizes.values())
    assert (actual["parameters"], actual["average"]) == (4 * total, average * total)
    counters = actual["optimizer"] - per_kernel * kernels - per_other * others
    assert 4 <= counters <= 64
