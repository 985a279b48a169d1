"""Tiny tokenizers of every family that the alignment knows, trained in this process on one page of mixed text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAGE = [
    "The quick brown foxes jump over the lazy dogs, and the lazier cats don't care; they've slept since 1984.",
    "  Two spaces, then a tab\tand  three   spaces, and a line\n\nthat ends here.\n",
    "Mae hen wlad fy nhadau yn annwyl i mi, gwlad beirdd a chantorion, enwogion o fri; dŵr, tŷ, môr.",
    "اللغة العربية تكتب من اليمين إلى اليسار، والقطة نائمة على السجادة منذ الصباح.",
    "हिन्दी में लिखा हुआ एक छोटा वाक्य, जिसमें मात्राएँ और संयुक्त अक्षर हैं।",
    "今天天气很好，我们去公园散步，看见了很多花。今天天气很好，明天也很好。",
    "Emoji: 😀 👩‍👩‍👧 🇬🇧 👍🏽 ❤️, accents: café naïve e\u0301, and a number: 1,234,567.89%.",
    "def add(left, right):\n    return left + right  # the sum of both\n\nfor i in range(10):\n    print(i, '<b>')\n",
    "if (x != y) { return a[i] ? 'yes' : \"no\"; } // a comment\n\tint main(void);\n",
]
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_FIRST = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex(r"[一-龥\u3040-ゟ゠-ヿ]+"), "isolated"),
    ]
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FALCON_FIRST = pre_tokenizers.Sequence(
    [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Split(Regex(GPT2), "isolated"), pre_tokenizers.Digits()]
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def byte_level(
    pattern: str | None = None,
    form: Any = None,
    *,
    before: Any = None,
    prefix: bool = False,
    bos: bool = False,
    whole_words: bool = False,
    added: tuple[AddedToken, ...] = (),
    vocab_size: int = 420,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: GPT-2's own pre-tokenizer, or a pattern as in Llama 3 and Qwen, with a normalizer or none."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    if form is not None:
        tokenizer.normalizer = form
    if pattern is None:
        splitter: Any = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        splitter = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
            ]
        )
    if before is not None:
        splitter = pre_tokenizers.Sequence([before, splitter])
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PAGE, trainer)
    tokenizer.add_tokens(list(added))
    if bos:
        start = tokenizer.token_to_id("<|start|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", start)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|end|>"
    )


def _sentencepiece(
    normalizer: Any, splitter: Any, strip: bool, added: tuple[AddedToken, ...], bos: bool
) -> PreTrainedTokenizerFast:
    """BPE on space marks with byte fallback. Trained on words that begin with their mark, as sentencepiece does."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=260, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=70
    )
    trained.train_from_iterator(PAGE, trainer)
    learned = trained.get_vocab()
    in_order = sorted(learned, key=learned.__getitem__)
    merges = _merges_of(trained)
    spaces = ["▁▁", "▁▁▁▁"]
    merges += [("▁", "▁"), ("▁▁", "▁▁")]
    tokens = [*in_order[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *in_order[3:]]
    tokens += [space for space in spaces if space not in learned]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)},
        merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(list(added))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


def _merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]


def llama2(added: tuple[AddedToken, ...] = (), bos: bool = True) -> PreTrainedTokenizerFast:
    """Llama 2: a space mark before every text, no pre-tokenizer."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _sentencepiece(normalizer, None, True, added, bos)


def llama2_metaspace() -> PreTrainedTokenizerFast:
    """The same in its newer spelling: a Metaspace that does not split, with its space before the first text only."""
    tokenizer = Tokenizer.from_str(llama2((AddedToken("<tool>", normalized=False),)).backend_tokenizer.to_str())
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


def gemma() -> PreTrainedTokenizerFast:
    """Gemma: spaces are replaced, nothing is put before a text, runs of line ends are added tokens."""
    added = tuple(AddedToken(content, normalized=False) for content in ("\n\n", "\n\n\n", "▁▁▁", "<table>", "</table>"))
    return _sentencepiece(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), False, added, True
    )


def unigram(scheme: str = "always", before: Any = None) -> PreTrainedTokenizerFast:
    """Unigram with Metaspace, NFKC and runs of spaces squeezed to one."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(False, True), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)  # type: ignore[arg-type,assignment]
    if before is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([before, tokenizer.pre_tokenizer])  # type: ignore[assignment,list-item]
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)  # type: ignore[arg-type,assignment]
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(PAGE, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    """WordPiece that lower-cases and drops accents, with [CLS] before a text and [SEP] behind it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.decoder = decoders.WordPiece()  # type: ignore[assignment]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(PAGE, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", eos_token="[SEP]"
    )


def wordlevel() -> PreTrainedTokenizerFast:
    """Words between white space, each a token or unknown."""
    words = sorted({word for line in PAGE for word in re.split(r"\s+", line) if word})
    tokens = ["<unk>", "<s>", "</s>", *words]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gpt2": lambda: byte_level(bos=True),
    "roberta": lambda: byte_level(prefix=True, added=(AddedToken("<tool>", normalized=False),)),
    "starcoder": lambda: byte_level(before=pre_tokenizers.Digits(individual_digits=True)),
    "qwen": lambda: byte_level(
        QWEN,
        normalizers.NFC(),
        added=(
            AddedToken("<tool>", normalized=False),
            AddedToken("<tool>s", normalized=False),
            AddedToken("caf\u00e9"),
        ),
    ),
    "llama3": lambda: byte_level(
        LLAMA3,
        bos=True,
        whole_words=True,
        added=(AddedToken("<pad>", lstrip=True, normalized=False), AddedToken("</eot>", rstrip=True, normalized=False)),
    ),
    "o200k": lambda: byte_level(O200K),
    "bloom": lambda: byte_level(BLOOM),
    "deepseek": lambda: byte_level(DEEPSEEK, before=DEEPSEEK_FIRST),
    "spaced_pieces": lambda: byte_level(QWEN, prefix=True),
    "falcon": lambda: byte_level(r"[0-9][0-9][0-9]", before=FALCON_FIRST),
    "llama2": llama2,
    "llama2_tools": lambda: llama2((AddedToken("<tool>", normalized=False), AddedToken("[INST]"))),
    "llama2_metaspace": llama2_metaspace,
    "gemma": gemma,
    "unigram": unigram,
    "unigram_first": lambda: unigram("first"),
    "xlm_roberta": lambda: unigram(before=pre_tokenizers.WhitespaceSplit()),
    "wordpiece": wordpiece,
    "wordlevel": wordlevel,
}
"""A tokenizer of every family, by the name of a model that has one."""


@cache
def family(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family, built once."""
    return FAMILIES[name]()


def plain_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The ids of a text by the library itself, which looks for no special token in it."""
    return _plain(tokenizer).encode(text, add_special_tokens=False).ids


@cache
def _plain(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    return backend


PARTS = [
    *"aaabceéB你好天アب\u0301\u0327\u093f\u0cc6\u0cc2\u0cd5\u1100\u1161\u11a8가각ßİﬁ①²११२  \n\r\t'(-/!。😀_%<>|",
    *"\u00a0\u3000\u200d\u0000\ufeff\u2028\ufffd",
    *(
        "👩‍👩‍👧",
        "🇬🇧",
        "👍🏽",
        "לله",
        "שלום",
        "re",
        "'s",
        "'ll",
        "  ",
        "\n\n",
        "\n\n\n",
        "    ",
        "123",
        "ab",
        "<tool>",
        "<tool>s",
    ),
    *(
        "<tool",
        "caf",
        "café",
        "cafe\u0301",
        "[INST]",
        "<pad>",
        " </eot>  ",
        "▁",
        "▁▁▁",
        "<table>",
        "</",
        "the",
        " the",
        "<0x41>",
    ),
    *("今天", "हि", "int main", "1,234", "<|en", "<|end|>"),
]
"""What a tokenizer may treat in its own way: joining and moving marks, white space, digits, added tokens and their
beginnings, a special token that is spelled, the space mark itself."""


def random_text(generator: random.Random, parts: int = 12) -> str:
    """Up to `parts` of `PARTS`, pieces of the page and any characters, run together."""
    page = " ".join(PAGE)
    found = []
    for _ in range(generator.randint(0, parts)):
        kind = generator.random()
        if kind < 0.75:
            found.append(generator.choice(PARTS))
        elif kind < 0.95:
            at = generator.randrange(len(page))
            found.append(page[at : at + generator.randint(1, 15)])
        else:
            planes = [(0x0, 0x3000), (0x3000, 0xD800), (0xE000, 0x11000), (0x11000, 0x20000)]
            found.append(chr(generator.randrange(*generator.choice(planes))))
    return "".join(found)


def random_rows(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, special: list[int], rows: int
) -> list[list[int]]:
    """Rows of ids as a tokenizer makes them, and as a model may: any ids, in any order, with special ones between."""
    size = len(tokenizer)
    found = []
    for _ in range(rows):
        row = [generator.choice(special)] if generator.random() < 0.5 else []
        for _ in range(generator.randint(1, 3)):
            if generator.random() < 0.6:
                row += plain_ids(tokenizer, random_text(generator))
            else:
                row += [generator.randrange(generator.choice([size, 300])) for _ in range(generator.randint(0, 25))]
            if generator.random() < 0.7:
                row.append(generator.choice([*special, size + 3]))
        found.append(row)
    return found
