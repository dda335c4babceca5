"""``python -m tests.outside.public_data FOLDER NAME...``: what public scripts read, made here by chance.

Random tokens, pictures and sentences, tiny models with random weights, under the names that the scripts ask for: a
library that is offline takes a folder of that name for the model or data set itself. Runs in the environment of the
public scripts (transformers, tokenizers, pillow).
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [
    f"{start}{end}"
    for start in ["b", "c", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"]
    for end in ["a", "e", "i", "o", "u"]
]


def sentence(draw: random.Random, least: int = 5, most: int = 20) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def describe(folder: Path, name: str, files: Mapping[str, str]) -> None:
    """The card of a data set: one configuration of so many splits."""
    lines = ["---", "configs:", f"- config_name: {name}", "  data_files:"]
    for split, file in files.items():
        lines += [f"  - split: {split}", f"    path: {file}"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def tokens(folder: Path) -> None:
    """nanoGPT's: two files of 16-bit tokens, and how many words there are."""
    draw = np.random.default_rng(1)
    folder = folder / "data" / "tokens"
    folder.mkdir(parents=True)
    for name in ("train", "val"):
        draw.integers(0, 64, 200_000, dtype=np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))


def text(folder: Path) -> None:
    draw = random.Random(2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.txt").write_text("\n".join(sentence(draw) for _ in range(3000)))


def images(folder: Path) -> None:
    """A folder of folders, one a class."""
    from PIL import Image

    draw = np.random.default_rng(3)
    for part, count in (("train", 120), ("validation", 24)):
        for label in range(4):
            inner = folder / "images" / part / f"class{label}"
            inner.mkdir(parents=True)
            for number in range(count):
                picture = draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(picture).save(inner / f"{number}.png")


def tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    special = ["<pad>", "<unk>", "<s>", "</s>"]
    words = {word: number for number, word in enumerate([*special, *WORDS, "user", "assistant", ":"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        model_max_length=256,
    )  # fmt: skip
    made.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
    )
    made.save_pretrained(folder)
    return made


def causal_model(folder: Path, name: str, *, width: int = 64, layers: int = 2) -> None:
    """A tiny model that continues text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = len(tokenizer(folder / name))
    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0, bos_token_id=2,
        eos_token_id=3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / name)


def tiny(folder: Path) -> None:
    causal_model(folder, "tiny")


def smol(folder: Path) -> None:
    """Less tiny: its script takes 500 rows and three epochs, which have to last for two minutes."""
    causal_model(folder, "HuggingFaceTB/SmolLM-360M", width=320, layers=8)


def bert(folder: Path) -> None:
    """The model, and its tokenizer, that the accelerate examples train."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    target = folder / "bert-base-cased"
    target.mkdir(parents=True)
    (target / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(str(target / "vocab.txt")).save_pretrained(target)
    config = BertConfig(
        vocab_size=len(WORDS) + 5, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    BertForSequenceClassification(config).save_pretrained(target)


def pairs(folder: Path) -> None:
    """Pairs of sentences with a label, and the metric for them, as the accelerate examples ask for both."""
    draw = random.Random(4)
    target = folder / "nyu-mll" / "glue"
    for part, count in (("train", 60_000), ("validation", 600)):
        rows = [
            {"idx": n, "sentence1": sentence(draw), "sentence2": sentence(draw), "label": draw.randint(0, 1)}
            for n in range(count)
        ]
        write_rows(target / "mrpc" / f"{part}.jsonl", rows)
    describe(target, "mrpc", {part: f"mrpc/{part}.jsonl" for part in ("train", "validation")})
    metric = folder / "glue"
    metric.mkdir()
    (metric / "glue.py").write_text(METRIC)


METRIC = """import datasets
import evaluate


class Right(evaluate.Metric):
    def _info(self):
        features = datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


def lines(folder: Path) -> None:
    draw = random.Random(5)
    target = folder / "Salesforce" / "wikitext"
    for part, count in (("train", 2_000), ("validation", 200), ("test", 200)):
        rows = [{"text": sentence(draw, 200, 250)} for _ in range(count)]
        write_rows(target / "wikitext-2-v1" / f"{part}.jsonl", rows)
    files = {part: f"wikitext-2-v1/{part}.jsonl" for part in ("train", "validation", "test")}
    describe(target, "wikitext-2-v1", files)


def talks(folder: Path) -> None:
    """Conversations: to learn from, with a chosen and a rejected answer, and without an answer."""
    draw = random.Random(6)
    for name in ("talks", "choices", "prompts"):
        for part, count in (("train", 20_000), ("test", 60)):
            rows = []
            for _ in range(count):
                asked = [{"role": "user", "content": sentence(draw)}]
                answers = [[{"role": "assistant", "content": sentence(draw)}] for _ in range(2)]
                rows.append({
                    "talks": {"messages": asked + answers[0]},
                    "choices": {"prompt": asked, "chosen": answers[0], "rejected": answers[1]},
                    "prompts": {"prompt": asked},
                }[name])  # fmt: skip
            write_rows(folder / name / f"{part}.jsonl", rows)


MAKERS: Mapping[str, Callable[[Path], None]] = {
    each.__name__: each for each in (tokens, text, images, tiny, smol, bert, pairs, lines, talks)
}


def main() -> int:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        MAKERS[name](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
