"""Graformer's initialisation and frozen parameters against the authors' code.

Other files of the same form are put to it through `MNMT_GOLDEN_DIR`.
"""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Model, Optimizer
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.training.param_mapping import mapped_param_sources
from tests.made_params import flat
from tests.parity.reference import (
    FOLDER,
    graft_model,
    permute_rows,
    read_parameters,
    rows_of,
    spans_of,
    write_parameters,
)

LOGITS_ATOL = 2e-5


def files(pattern):
    return sorted([*FOLDER.glob(pattern), *FOLDER.glob(f"methods/{pattern}")])


def read(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module", params=files("graft_transfer*.npz"), ids=lambda path: path.stem)
def transfer(request):
    return read(request.param)


def state(values, prefix):
    return {n.removeprefix(prefix): a for n, a in values.items() if n.startswith(prefix)}


def params_of(values, prefix, model):
    layout = get_layout(model.layout, model.stage_layers)
    return read_parameters(state(values, prefix), model, layout)


def initialised(values):
    """Return the model and parameters after the parameter mappings."""
    model = graft_model(values)
    givers = {}
    arrays = {
        "mlm": ("mbert/", "masked_lm", model.methods[0].encoder_layers),
        "lm": ("mgpt/", "causal_lm", model.stage_layers[1]),
    }
    for origin, (prefix, layout, layers) in arrays.items():
        alone = dataclasses.replace(model, layout=layout, stage_layers=(layers,), methods=())
        givers[origin] = types.SimpleNamespace(arrays=flat(params_of(values, prefix, alone)))
    before = params_of(values, "before/", model)
    sources = mapped_param_sources(model.methods[0].param_mappings(model), givers, flat(before))

    def copied(path, leaf):
        source = sources.get(param_path(path))
        return leaf if source is None else source.array

    return model, jax.tree_util.tree_map_with_path(copied, before)


def test_each_parameter_is_the_one_in_the_authors_model(transfer):
    model, params = initialised(transfer)
    actual = write_parameters(params, model, get_layout(model.layout, model.stage_layers))
    after, before = state(transfer, "after/"), state(transfer, "before/")
    assert actual.keys() == after.keys()
    for name, expected in after.items():
        used = slice(2 if "embed_positions" in name else 0, None)  # before: padding's
        np.testing.assert_array_equal(actual[name][used], expected[used], err_msg=name)
    assert sum(not np.array_equal(after[name], before[name]) for name in after) > 60


def test_the_grafted_model_gives_the_authors_logits(transfer):
    model, params = initialised(transfer)
    sources = rows_of(transfer["source_right_padded"], transfer["source_lengths"])
    labels = rows_of(transfer["target_labels"], transfer["target_lengths"])
    layout = get_layout(model.layout, model.stage_layers)
    batch = spans_of(transfer, model, layout, list(zip(sources, labels, strict=True)))
    network = build_model(model, len(params["embedding"]))
    logits = np.asarray(network.apply({"params": params}, batch))
    expected = np.stack([permute_rows(row.T).T for row in transfer["logits"]])
    valid = batch["target_segment_ids"] != 0
    assert valid.sum() > 10
    np.testing.assert_allclose(logits[valid], expected[valid], atol=LOGITS_ATOL, rtol=0)


def frozen_names(model, encoder):
    """Return the authors' names of frozen parameters."""
    (method,) = model.methods
    model = dataclasses.replace(model, methods=(dataclasses.replace(method, encoder=encoder),))
    trainable = Trainable.from_config(model, Optimizer())
    marked = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.full(leaf.shape, not trainable.trains(param_path(path)), np.float32),
        parameter_shapes(model, 9),
    )
    written = write_parameters(marked, model, get_layout(model.layout, model.stage_layers))
    return {name for name, array in written.items() if array.any()}


RULES = {"tune": "frozen_paper_rule", "freeze": "frozen_released_regex"}
TIED = "decoder.lm_output_projection.weight"  # W1 once more, which theirs list as the embedding


@pytest.mark.parametrize("encoder", RULES)
@pytest.mark.parametrize("path", files("graft_[fn]*fusion*.npz"), ids=lambda path: path.stem)
def test_frozen_parameters_are_those_of_the_authors(path, encoder):
    values = read(path)
    expected = json.loads(str(values[RULES[encoder]]))
    assert frozen_names(graft_model(values), encoder) - {TIED} == set(expected)


@pytest.mark.parametrize("encoder", RULES)
@pytest.mark.parametrize("path", files("graft_frozen_names*.json"), ids=lambda path: path.stem)
def test_frozen_parameters_at_the_published_size(path, encoder):
    expected = json.loads(path.read_text())[RULES[encoder]]
    sizes = {"embed": 4, "mlp": 4, "heads": 1, "positions": ("learned", 2), "norm": "pre"}
    model = Model("grafted", (12, 6, 6), methods=(Graformer(),), **sizes)
    assert frozen_names(model, encoder) - {TIED} == set(expected)
    assert len(expected) == {"tune": 100, "freeze": 200}[encoder]
