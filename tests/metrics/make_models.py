"""Make tiny models with random parameters, and their scores by the libraries themselves.

Runs in the environment of the metrics, without mnmt_jax: FOLDER ROWS, a JSON file of rows. Writes
comet/, kiwi/, xcomet/, metricx/, bert/roberta-large/ and scores.json to FOLDER.
"""

import json
import pathlib
import sys

import bert_score
import pytorch_lightning
import torch
import yaml
from comet.models import ReferencelessRegression, RegressionMetric, XCOMETMetric
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaTokenizerFast,
)

METRICX_VOCABULARY = 250_100
LAYERS = 17  # of the encoder: bert-score takes the last one of 17
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def tokenizer(texts):
    """Train a tokenizer of unigrams with the frame of XLM-R."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>")
    made.train_from_iterator(texts, trainer)
    frame = [(token, made.token_to_id(token)) for token in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=frame
    )
    return made


def save_encoder(folder, texts):
    """Save a tiny XLM-R with its tokenizer."""
    fast = XLMRobertaTokenizerFast(tokenizer_object=tokenizer(texts), model_max_length=100)
    fast.save_pretrained(folder)
    config = XLMRobertaConfig(
        vocab_size=len(fast),
        hidden_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=130,
    )
    XLMRobertaModel(config).save_pretrained(folder)


def comet_scores(folder, encoder, kind, rows, **options):
    """Save a model of COMET's library and return its scores."""
    model = kind(
        pretrained_model=str(encoder),
        hidden_sizes=[8, 4],
        load_pretrained_weights=False,
        local_files_only=True,
        **options,
    )
    (folder / "checkpoints").mkdir(parents=True)
    trainer = pytorch_lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "checkpoints/model.ckpt", weights_only=True)
    (folder / "hparams.yaml").write_text(yaml.dump(dict(model.hparams)))
    model.eval()
    return [model.predict([row], gpus=0, progress_bar=False).scores[0] for row in rows]


def metricx_scores(folder, texts, rows):
    """Save a tiny MT5 with the vocabulary of MetricX, and return logits of <extra_id_10>."""
    config = MT5Config(
        vocab_size=METRICX_VOCABULARY,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = MT5ForConditionalGeneration(config).eval()
    model.lm_head.weight.data *= 20  # scores inside and outside the range
    model.save_pretrained(folder)
    made = tokenizer(texts)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)
    scores = []
    for row in rows:
        text = f"source: {row['src']} candidate: {row['mt']} reference: {row['ref']}"
        ids = torch.tensor([made.encode(text).ids[:-1]])
        hidden = model.encoder(ids).last_hidden_state
        first = torch.zeros((1, 1), dtype=torch.long)
        states = model.decoder(first, encoder_hidden_states=hidden).last_hidden_state
        if config.tie_word_embeddings:
            states = states * config.d_model**-0.5
        scores.append(float(model.lm_head(states)[0, 0, 250089]))
    return scores


def main():
    """Make the models."""
    torch.manual_seed(0)
    folder, rows = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text())
    texts = [text for row in rows for text in row.values()] * 5
    encoder = folder / "bert" / "roberta-large"
    save_encoder(encoder, texts)
    scores = {
        "comet": comet_scores(folder / "comet", encoder, RegressionMetric, rows),
        "kiwi": comet_scores(folder / "kiwi", encoder, ReferencelessRegression, rows),
        "xcomet": comet_scores(
            folder / "xcomet",
            encoder,
            XCOMETMetric,
            rows,
            encoder_model="XLM-RoBERTa",
            word_layer=LAYERS,
        ),
        "metricx": metricx_scores(folder / "metricx", texts, rows),
    }
    hypotheses, references = ([row[name] for row in rows] for name in ("mt", "ref"))
    _, _, f1 = bert_score.score(
        hypotheses, references, model_type=str(encoder), num_layers=LAYERS, device="cpu"
    )
    scores["bert_score"] = f1.tolist()
    (folder / "scores.json").write_text(json.dumps(scores))


main()
