"""A model of every row of the table learns CLDR phrases from scratch, through the whole path.

Text to cache, cache to batches, training, checkpoint, and text out of the run directory: what comes
out must be the reference, and it must depend on the language asked for.
"""

import dataclasses

import pytest

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Train
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.mixtures import cache_task_sources, language_text
from mnmt_jax.data.parallel_corpora import CldrPhrases
from mnmt_jax.data.parallel_prompts import write_prompted_cache
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.methods.lamate import LaMaTE
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.lcs import LCS
from mnmt_jax.methods.mrasp2 import MRASP2
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.train import train
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from tests.made_params import assert_same
from tests.made_run import LEARNS, LEARNS_FAST, records
from tests.unit import made_text

DIRECTIONS = (("en", "de"), ("en", "fr"))
PHRASES = 16
PIECES = 220  # nearly as many as the phrases allow: short rows, and quick to learn
LENGTH = 36  # pieces of the longest phrase, and its tags
STEPS = 200
EXACT = 0.9


@pytest.fixture(scope="module")
def corpus():
    """Has no validation split: validation would compile a program in every run."""
    return CldrPhrases(("en", "de", "fr"), sizes={"train": PHRASES}, name="phrases")


@pytest.fixture(scope="module")
def cache(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning")
    text = language_text(corpus, DIRECTIONS, 1000)
    options = SentencePieceOptions(vocab_size=PIECES, byte_fallback=False)
    vocabulary = train_sentencepiece(text, folder / "vocabulary", options=options)
    write_cache(
        folder / "cache", cache_task_sources(corpus, DIRECTIONS, vocabulary), vocabulary=vocabulary
    )
    return folder / "cache"


def configure(cache, layout: str, instruction: str) -> Config:
    stages = {1: (2,), 2: (1, 2), 3: (1, 1, 1)}[len(LAYOUTS[layout].stages)]
    return Config(
        data=Data(
            cache=str(cache),
            rows=4,
            source_length=LENGTH,
            target_length=LENGTH,
            max_segments=6,
            instruction=instruction,
            chunk_examples=480,
        ),
        model=dataclasses.replace(LEARNS, layout=layout, stage_layers=stages),
        optimizer=LEARNS_FAST,
        train=Train(steps=STEPS, eval_every=STEPS, save_every=STEPS, log_every=100),
        decode=Decode(beam_size=1, max_length=LENGTH, buckets=(LENGTH,), batch=PHRASES),
        mesh=Mesh(),
    )


def exact_share(run, corpus) -> dict[str, float]:
    translator = Translator.load(run)
    shares = {}
    for source, target in DIRECTIONS:
        sources, references = zip(*corpus.pairs("train", (source, target)), strict=True)
        found = translator.translate(sources, source=source, target=target)
        shares[target] = sum(map(str.__eq__, found, references)) / len(references)
    return shares


@pytest.mark.parametrize(
    ("layout", "instruction"),
    # Instruction 5 is the least like the others: a source tag, and a forced first output. That each
    # instruction is translated as it is trained is in tests/unit/test_translator.py.
    [(name, "register" if "register" in name else "1") for name in LAYOUTS] + [("prefix", "5")],
)
def test_learns_to_translate(layout, instruction, cache, corpus, tmp_path, one_device):
    train(configure(cache, layout, instruction), tmp_path)
    shares = exact_share(tmp_path, corpus)
    assert min(shares.values()) >= EXACT, shares


# With the equations as they stand, which learn such a text in fewer updates than the defaults.
PLAIN_GTPDM = TPDM(layer=1, gated=True, clip=False, head_start=0, ramp=0, critic_steps=1)


@pytest.mark.parametrize(
    ("layout", "instruction", "of_model", "of_training"),
    [
        # SD: a branch in one decoder layer, a residual connection less in one encoder layer.
        (
            "encoder_decoder",
            "1",
            (LanguageLayers(without=("en",), layers=(3,), mlp=32), CutResidual(sublayer="mlp")),
            (),
        ),
        ("register", "register", (LanguageLayers(mlp=32),), ()),
        ("encoder_decoder", "5", (LCS(),), (MRASP2(1),)),
        ("encoder_decoder", "1", (PLAIN_GTPDM,), ()),
    ],
    ids=[
        "language layers and a cut residual",
        "registers with language layers",
        "lcs and mrasp2",
        "positions disentangled",
    ],
)
def test_learns_with_methods(
    layout, instruction, of_model, of_training, cache, corpus, tmp_path, one_device
):
    config = configure(cache, layout, instruction)
    model = dataclasses.replace(config.model, methods=of_model)
    changed = dataclasses.replace(config.train, methods=of_training)
    train(dataclasses.replace(config, model=model, train=changed), tmp_path)
    shares = exact_share(tmp_path, corpus)
    assert min(shares.values()) >= EXACT, shares


def test_learns_on_a_frozen_encoder(cache, corpus, tmp_path, one_device):
    """Adaptor and decoder learn; the encoder stays what it was in its run, bit for bit."""
    config = configure(cache, "encoder_decoder", "1")
    encoder, run = tmp_path / "encoder", tmp_path / "run"
    train(config, encoder)
    model = dataclasses.replace(
        config.model,
        layout="encoder_adaptor_decoder",
        stage_layers=(1, 1, 2),
        methods=(LaMaTE(group=1),),
    )
    train(dataclasses.replace(config, model=model), run, [SourceRunSpec(encoder, name="encoder")])
    shares = exact_share(run, corpus)
    assert min(shares.values()) >= EXACT, shares
    before, after = (load_params(RunDirectory.open(folder), None)[0] for folder in (encoder, run))
    for name in ("embedding", "layer_0", "stage_0_norm"):
        assert_same({name: after[name]}, {name: before[name]})


def test_learns_with_and_without_an_auxiliary_translation(tmp_path, one_device):
    """Parallel multilingual prompting: plain sources, and sources with the model's translation."""
    vocabulary = made_text.vocabulary()
    texts = {code: made_text.sentences(code, PHRASES) for code in made_text.LANGUAGES}

    def task(source: str, target: str) -> TaskSource:
        sides = (vocabulary.encode_lines(texts[code], code) for code in (source, target))
        splits = {"train": [*zip(*sides, strict=True)].copy}
        return TaskSource(f"made_{source}_{target}", source, target, splits)

    tasks = [task(*direction) for direction in DIRECTIONS]
    languages = {"de": "fr", "fr": "de"}
    write_prompted_cache(tmp_path / "cache", tasks, languages, vocabulary=vocabulary)
    config = configure(tmp_path / "cache", "encoder_decoder", "1")
    data = dataclasses.replace(config.data, source_length=2 * LENGTH)
    decode = dataclasses.replace(config.decode, buckets=(2 * LENGTH,))
    steps = dataclasses.replace(config.train, steps=2 * STEPS, eval_every=STEPS, save_every=STEPS)
    train(dataclasses.replace(config, data=data, decode=decode, train=steps), tmp_path / "run")
    translator = Translator.load(tmp_path / "run")
    for options in ({}, {"pivot": "fr", "pivot_prompt": True}):
        translations = translator.translate(texts["en"], source="en", target="de", **options)
        assert sum(map(str.__eq__, translations, texts["de"])) / PHRASES >= EXACT, options


def test_learns_with_the_contrastive_term(cache, corpus, tmp_path, one_device):
    config = configure(cache, "two_stage_trigger", "1")
    changed = dataclasses.replace(config.train, methods=(InstruCL(2),), log_every=20)
    train(dataclasses.replace(config, train=changed), tmp_path)
    shares = exact_share(tmp_path, corpus)
    assert min(shares.values()) >= EXACT, shares
    terms = [record["contrastive"] for record in records(tmp_path)]
    assert len(terms) == STEPS / 20 and sum(terms[-3:]) / 3 < 0.9 * terms[0]
