"""Language models: scores against plain loops, samples against the model's distribution."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.converter import BatchExtras, Example, make_converter, segments_from_rows
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.decoding.language_model import LanguageModel
from mnmt_jax.decoding.scoring import Score, perplexity
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import NLL_TOKENS
from mnmt_jax.training.train import train
from tests.made_run import make_config, one_device, records
from tests.run_commands import command
from tests.unit.made_language_model import (
    BUCKETS,
    log_softmax,
    logits_of,
    made_language_model,
    write_made_run,
)
from tests.unit.made_text import sentence, vocabulary
from tests.unit.made_translator import LINES, made_translator

ATOL = 2e-4  # of sums of float32 log-probabilities of a few nats each
EOS = 1
TEXTS = [sentence(number, "de")[:24] for number in range(5)] + ["", "zwei"]


def before(model: LanguageModel, language: str, instruction: str) -> list[int]:
    """Return the prefix of a text for a causal model, by the table of instructions."""
    tag = model.vocabulary.tag_id(language)
    return {"3": [tag], "4": [EOS, tag]}[instruction]


@pytest.mark.parametrize("instruction", ["3", "4"])
def test_a_causal_score_is_the_sum_of_next_token_log_probs(instruction):
    model = made_language_model(instruction=instruction)
    actual = model.score(TEXTS, language="de")
    prefix = before(model, "de", instruction)
    pieces = [model.vocabulary.encode(text) for text in TEXTS]
    log_probs = log_softmax(logits_of(model, [[*prefix, *text_pieces] for text_pieces in pieces]))
    for row, text_pieces in enumerate(pieces):
        terms = [
            log_probs[row, len(prefix) - 1 + index, token]
            for index, token in enumerate([*text_pieces, EOS])
        ]
        assert actual[row].tokens == len(terms)
        assert actual[row].log_prob == pytest.approx(sum(terms), abs=ATOL)
    assert {score.tokens for score in actual} > {1} and any(len(p) + 1 > BUCKETS[0] for p in pieces)
    assert model.score(TEXTS, language="fr")[0] != actual[0]


@pytest.mark.parametrize("instruction", ["3", "1", "5"])
def test_a_masked_score_hides_each_token_alone(instruction):
    model = made_language_model("masked_lm", instruction)
    actual = model.score(TEXTS, language="de")
    tag = [] if instruction == "3" else [model.vocabulary.tag_id("de")]
    for text, score in zip(TEXTS, actual, strict=True):
        whole = [*tag, *model.vocabulary.encode(text), EOS]
        places = range(len(tag), len(whole))
        rows = [[*whole[:p], model.vocabulary.mask_id, *whole[p + 1 :]] for p in places]
        log_probs = log_softmax(logits_of(model, rows))
        terms = [log_probs[row, index, whole[index]] for row, index in enumerate(places)]
        assert score.tokens == len(terms)
        assert score.log_prob == pytest.approx(sum(terms), abs=ATOL)


def learner_of(model: LanguageModel) -> Learner:
    config = dataclasses.replace(
        model.config, optimizer=dataclasses.replace(model.config.optimizer, label_smoothing=0.0)
    )
    return Learner.from_config(config, model.vocabulary.size, make_mesh(config.mesh))


def training_batch(model: LanguageModel, texts, rows: int):
    """Lay texts out as training does, two in a row."""
    examples = [
        Example(np.zeros(0, np.int32), np.array(model.vocabulary.encode(text), np.int32), 1, 1)
        for text in texts
    ]
    data = Data(instruction="3", source_length=40, target_length=40, max_segments=2)
    converter = make_converter(
        model.vocabulary, model.inference_model.model.layout, data, BatchExtras()
    )
    pairs = [examples[start : start + 2] for start in range(0, len(examples), 2)]
    return converter.batch(segments_from_rows(pairs), rows)


def test_scores_are_the_loss_that_training_reports():
    model = made_language_model()
    batch = training_batch(model, TEXTS, 8)
    sums = jax.jit(lambda p, b: batch_loss(learner_of(model), p, b)[1])(
        model.inference_model.params, batch
    )
    scores = model.score(TEXTS, language="de")
    assert sum(score.tokens for score in scores) == sums["tokens"]
    assert -sum(score.log_prob for score in scores) == pytest.approx(float(sums["nll"]), abs=ATOL)
    mean = float(sums["nll"]) / float(sums["tokens"])
    assert model.perplexity(TEXTS, language="de") == pytest.approx(math.exp(mean), rel=1e-5)


def test_a_masked_score_equals_the_training_loss_of_the_masked_tokens():
    model, text = made_language_model("masked_lm"), TEXTS[0]
    whole = np.array([*model.vocabulary.encode(text), EOS])
    batch = training_batch(model, [""] * (2 * len(whole)), len(whole))
    tokens, labels = batch["source_tokens"], batch["source_labels"]
    tokens[:], labels[:] = 0, -1
    index = np.arange(len(whole))
    tokens[:, : len(whole)], labels[index, index] = whole, whole
    tokens[index, index] = model.vocabulary.mask_id
    batch["source_segment_ids"][:, : len(whole)] = 1
    batch["source_segment_ids"][:, len(whole) :] = 0
    batch["source_positions"][:, : len(whole)] = index
    sums = jax.jit(lambda p, b: batch_loss(learner_of(model), p, b)[1])(
        model.inference_model.params, batch
    )
    (score,) = model.score([text], language="de")
    assert score.tokens == sums[NLL_TOKENS] == len(whole)
    assert score.log_prob == pytest.approx(-float(sums["nll"]), abs=ATOL)


@pytest.mark.parametrize("layout", ["causal_lm", "masked_lm"])
def test_a_score_does_not_depend_on_the_other_lines(layout):
    model = made_language_model(layout)
    together = model.score(TEXTS, language="de")
    for index in (0, 3, 5):
        others = [text if n == index else TEXTS[-1] for n, text in enumerate(TEXTS)]
        assert model.score(others, language="de")[index] == together[index]
        (alone,) = model.score([TEXTS[index]], language="de")  # sums of fewer rows round anew
        assert alone.log_prob == pytest.approx(together[index].log_prob, rel=1e-6)
    mixed = model.score(TEXTS[:2], language=["de", "fr"])
    assert mixed[1] == model.score(TEXTS[:2], language=["fr", "fr"])[1]
    assert mixed[0] == model.score(TEXTS[:2], language=["de", "de"])[0]
    assert (mixed[1] == together[1]) == (layout == "masked_lm")  # whose text has no tag


def test_training_and_scoring_give_the_same_perplexity(tmp_path, capfd):
    """Text, cache, a run of two updates, and scores of its checkpoint."""
    held = {code: [sentence(n, code)[:24] for n in range(40, 44)] for code in ("de", "fr")}

    def task(code: str) -> TaskSource:
        def of(texts):
            return lambda: (([], vocabulary().encode(text)) for text in texts)

        texts = {"train": [sentence(n, code)[:24] for n in range(20)], "validation": held[code]}
        return TaskSource(f"text_{code}", code, code, {k: of(v) for k, v in texts.items()})

    write_cache(tmp_path / "cache", [task("de"), task("fr")], vocabulary=vocabulary())
    config = make_config(
        tmp_path / "cache",
        data={"instruction": "3", "target_length": 40},
        model={"layout": "causal_lm", "dropout": 0.0},
        train={"steps": 2, "log_every": 1, "eval_every": 2, "save_every": 2},
        decode={"buckets": (24,)},
    )
    with one_device():
        assert train(config, tmp_path / "run") is None
    reported = records(tmp_path / "run")[-1]["validation"]["perplexity"]
    model = LanguageModel.load(tmp_path / "run")
    actual = {code: model.perplexity(texts, language=code) for code, texts in held.items()}
    assert actual == pytest.approx(reported, rel=1e-5)
    shown = ", ".join(f"{code} {value:.2f}" for code, value in reported.items())
    assert f", perplexity {shown}" in capfd.readouterr().err


@pytest.mark.parametrize(("layout", "side"), [("causal_lm", "target"), ("masked_lm", "source")])
def test_texts_that_are_too_long_name_the_length_that_counts(layout, side, tmp_path):
    task = TaskSource("text_de", "de", "de", {"train": lambda: [([], [5] * 9)] * 3})
    write_cache(tmp_path, [task], vocabulary=vocabulary())
    lengths = {"source_length": 50, "target_length": 50, f"{side}_length": 4}
    data = Data(cache=str(tmp_path), rows=1, **lengths)
    pipeline = Pipeline(TokenCache.open(tmp_path), get_layout(layout, (1,)), data)
    expected = rf"row \(Data.{side}_length=4\); raise Data.{side}_length$"
    with pytest.raises(UserError, match=expected):
        pipeline.check_fits()


def test_perplexity_is_per_token():
    scores = [Score(-6.0, 2), Score(-3.0, 4)]
    assert perplexity(scores) == pytest.approx(math.exp(1.5))
    assert perplexity([Score(-4000.0, 1)]) == math.inf
    with pytest.raises(UserError, match="no lines"):
        perplexity([])
    assert scores[0].normalized(1.0) == -3.0 and scores[0].normalized(0.0) == -6.0


PROMPTS = ["", "zwei", "drei Fluss", "zwei drei Haus und", "klein"]


def greedy(model: LanguageModel, prompt: str, max_length: int) -> tuple[list[int], float]:
    """Return greedy tokens by full forward passes, and the sum of their log-probabilities."""
    prefix = [*before(model, "de", "3"), *model.vocabulary.encode(prompt)]
    drawn: list[int] = []
    total = 0.0
    while EOS not in drawn:
        log_probs = log_softmax(logits_of(model, [[*prefix, *drawn]]))[0]
        allowed = log_probs[len(prefix) + len(drawn) - 1].copy()
        if len(drawn) == max_length:
            token = EOS
        else:
            allowed[[0, EOS] if not drawn else [0]] = -np.inf
            token = int(allowed.argmax())
        total += log_probs[len(prefix) + len(drawn) - 1, token]
        drawn.append(token)
    return drawn, total


def test_greedy_sampling_equals_full_forward_passes():
    """For prompts of several lengths, also longer than the initial cache, which grows."""
    longest = BUCKETS[0] + BUCKETS[0] // 2 + 3
    model = made_language_model(max_length=longest)
    actual = list(model.continuations(PROMPTS, language="de", top_k=1))
    for prompt, one in zip(PROMPTS, actual, strict=True):
        tokens, log_prob = greedy(model, prompt, longest)
        assert list(one.tokens) == tokens
        assert one.log_prob == pytest.approx(log_prob, abs=ATOL)
        pieces = model.vocabulary.encode(prompt)
        assert one.text == model.vocabulary.decode([*pieces, *tokens])
        assert one.limited == (len(tokens) == longest + 1)
    assert [one.prompt for one in actual] == list(range(len(PROMPTS)))
    assert max(len(one.tokens) for one in actual) == longest + 1


def test_samples_follow_the_models_distribution():
    """Pairs of tokens after a prompt, by chi-square against products of whole passes."""
    model, draws = made_language_model(max_length=2, batch=500), 4000
    actual = model.continuations(["zwei"], language="de", count=draws)
    seen = np.zeros((model.vocabulary.size, model.vocabulary.size))
    for one in actual:
        seen[one.tokens[0], one.tokens[1]] += 1
    prefix = [*before(model, "de", "3"), *model.vocabulary.encode("zwei")]
    size = model.vocabulary.size
    logits = logits_of(model, [[*prefix, token] for token in range(size)])
    first, second = logits[0, len(prefix) - 1].copy(), logits[:, len(prefix)].copy()
    first[[0, EOS]] = second[:, 0] = -np.inf
    joint = np.exp(log_softmax(first)[:, None] + log_softmax(second))
    expected, often = draws * joint, draws * joint >= 5
    cells = np.append(expected[often], expected[~often].sum())
    counts = np.append(seen[often], seen[~often].sum())
    statistic, freedom = float(((counts - cells) ** 2 / cells).sum()), len(cells) - 1
    assert freedom > 50
    assert statistic < freedom + 3.1 * math.sqrt(2 * freedom)  # one seed in a thousand is above


def test_a_sample_depends_only_on_its_prompt_number_and_seed():
    model = made_language_model()
    whole = list(model.continuations(PROMPTS, language="de", count=3))
    assert [(one.prompt, one.draw) for one in whole] == [(p, d) for p in range(5) for d in range(3)]
    assert len({one.text for one in whole}) > 10
    few = list(model.continuations(PROMPTS[:4], language="de", count=1))
    assert few == [one for one in whole if one.draw == 0 and one.prompt < 4]
    codes = ["fr", "de", "fr", "fr", "fr"]
    mixed = list(model.continuations(["und", "zwei", "", "und", ""], language=codes, count=2))
    assert mixed[2:4] == whole[3:5]
    other = list(model.continuations(PROMPTS, language="de", count=3, seed=1))
    assert [one.text for one in other] != [one.text for one in whole]
    assert model.sample(PROMPTS, language="de", count=3) == [one.text for one in whole]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.sample(language="de", temperature=0.0), "temperature=0 searches .* top_k=1"),
        (lambda m: m.sample(language="de", source_contrast=0.5), "a language model has no source"),
        (lambda m: m.sample(language="de", copy_unknown=True), "has no source to copy from"),
        (
            lambda m: m.sample(language="de", max_length_per_source=1.5),
            "source=1.5: .* set it to 0",
        ),
        (lambda m: m.sample(language="de", utility="chrf"), "texts are drawn, not ranked"),
        (lambda m: m.sample(language="de", beam_groups=3, beam_size=3), "set Decode.beam_groups=1"),
        (lambda m: m.sample(language="de", count=0), "count=0 must be a whole number"),
        (lambda m: m.sample(language="xx"), "--language=xx: the model has no such language"),
        (lambda m: m.sample("zwei", language="de"), r"write \[text\]"),
        (lambda m: m.sample(["", "zwei " * 20], language="de"), "line 2 needs .* larger bucket"),
        (lambda m: m.score(["", "zwei " * 20], language="de"), "line 2 needs .* larger bucket"),
        (lambda m: m.score(["", None], language="de"), "line 2 must be a text"),
        (lambda m: m.score(["", ""], language=["de"]), "line 2 has no language"),
        (lambda m: m.score([""], language=["de", "en"]), "more languages than lines are given"),
    ],
)
def test_invalid_requests_are_one_error_line(call, message):
    with pytest.raises(UserError, match=message):
        call(made_language_model())


def test_a_masked_model_cannot_continue_text():
    model = made_language_model("masked_lm")
    with pytest.raises(UserError, match="'masked_lm' fills masks and cannot continue text; score"):
        model.sample(language="de")
    with pytest.raises(UserError, match="line 2 needs .* larger bucket"):
        model.score(["", "zwei " * 20], language="de")


def test_translators_and_language_models_are_not_interchangeable():
    translator, model = made_translator(), made_language_model()
    with pytest.raises(UserError, match=r"'register' translates .*'mnmt score --source --target"):
        LanguageModel(translator.config, vocabulary(), translator.inference_model.params)
    with pytest.raises(UserError, match="^runs/lm: Model.layout='causal_lm' is a language model"):
        Translator(model.config, vocabulary(), model.inference_model.params, run="runs/lm")
    with pytest.raises(UserError, match=r"'mnmt score --language', .*'mnmt sample --language'"):
        Translator(model.config, vocabulary(), model.inference_model.params)
    masked = made_language_model("masked_lm")
    with pytest.raises(UserError, match="'masked_lm' is a language model .*--language', graft it"):
        Translator(masked.config, vocabulary(), masked.inference_model.params)


@pytest.mark.parametrize("name", ["sample", "translate"])
def test_a_missing_file_is_named_with_its_flag(name):
    sides = ["--language=de"] if name == "sample" else ["--source=en", "--target=de"]
    script = {"translate": "infer"}.get(name, name)
    with pytest.raises(UserError, match="^--input=no.de: no such file"):
        command(script, "--run=nowhere", *sides, "--input=no.de")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make runs of a causal model, a masked one and a translator."""
    root = tmp_path_factory.mktemp("runs")
    models = {
        "causal": made_language_model(),
        "masked": made_language_model("masked_lm"),
        "register": made_translator(),
    }
    return {name: write_made_run(root / name, model) for name, model in models.items()}


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_score_writes_one_line_per_text_and_the_perplexity(name, runs, tmp_path, capsys):
    model = LanguageModel.load(runs[name])
    texts, output = write(tmp_path / "text.de", TEXTS), tmp_path / "scores"
    flags = ("--run", runs[name], "--language", "de", "--input", texts, "--output", output)
    command("score", *flags)
    scores = model.score(TEXTS, language="de")
    assert read(output) == [
        {"line": n, **dataclasses.asdict(score)} for n, score in enumerate(scores, start=1)
    ]
    message = (
        f"perplexity {perplexity(scores):.4f} ({sum(s.tokens for s in scores)} tokens of 7 lines)"
    )
    assert capsys.readouterr().err == ("pseudo-" if name == "masked" else "") + message + "\n"


def test_score_of_translations(runs, tmp_path, capsys):
    references = [sentence(number, "de")[:20] for number in range(len(LINES))]
    sides = [write(tmp_path / n, ls) for n, ls in (("en", LINES), ("de", references))]
    languages = ("--run", runs["register"], "--source", "en", "--target", "de")
    flags = (*languages, "--input", sides[0], "--reference", sides[1])
    command("score", *flags)
    printed = capsys.readouterr()
    actual = [json.loads(line) for line in printed.out.splitlines()]
    translator = Translator.load(runs["register"])
    rule = translator.score(LINES, references, source="en", target="de")
    tokens = [len(translator.vocabulary.encode(text)) + 1 for text in references]
    assert [each["tokens"] for each in actual] == tokens
    per_token = [each["log_prob"] / each["tokens"] for each in actual]  # a length penalty of 1
    np.testing.assert_allclose(per_token, rule, rtol=1e-6)
    mean = -sum(each["log_prob"] for each in actual) / sum(tokens)
    assert f"perplexity {math.exp(mean):.4f} " in printed.err
    write(sides[1], references[:3])
    with pytest.raises(UserError, match=r"--reference=.*: has 3 lines, but the input has 7"):
        command("score", *flags)
    with pytest.raises(UserError, match="is the file of --reference and would be overwritten"):
        command("score", *flags, "--output", sides[1])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--language=de", "--target=de"), "--language needs a language model, --target"),
        (("--source=en", "--target=de"), "--reference missing; a language model needs --language"),
        ((), "is missing; name --language for a language model, --source, --target and --ref"),
        (("--language=de", "--input=no.de"), "^--input=no.de: no such file; name a file of text"),
        (
            ("--source=en", "--target=de", "--reference=no.de"),
            "^--reference=no.de: no such file",
        ),
    ],
)
def test_score_refuses_mixed_flags(flags, message):
    with pytest.raises(UserError, match=message):
        command("score", "--run=nowhere", *flags)


def test_sample_writes_texts_of_every_prompt(runs, tmp_path, capsys):
    model = LanguageModel.load(runs["causal"])
    prompts, output = write(tmp_path / "prompts", PROMPTS), tmp_path / "texts"
    flags = ("--run", runs["causal"], "--language", "de", "--seed", 3)
    command("sample", *flags, "--count", 2, "--input", prompts, "--output", output)
    texts = model.sample(PROMPTS, language="de", count=2, seed=3)
    assert output.read_text(encoding="utf-8").splitlines() == texts
    capsys.readouterr()
    cold = write(tmp_path / "cold.gin", ["Decode.temperature = 0.05"])
    command("sample", *flags, "--format=jsonl", f"--gin_file={cold}")
    printed = capsys.readouterr()
    (expected,) = model.continuations(language="de", seed=3, temperature=0.05)
    assert json.loads(printed.out) == {
        **{"line": 1, "draw": 1, "text": expected.text, "log_prob": expected.log_prob},
        **{"tokens": len(expected.tokens), "limited": expected.limited},
    }
    assert ("1 text at the length limit (Decode.max_length=11)" in printed.err) == expected.limited
    with pytest.raises(UserError, match="Decode.temperature=0 searches"):
        command("sample", *flags, "--gin.Decode.temperature=0")
