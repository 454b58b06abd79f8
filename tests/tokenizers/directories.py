"""Hugging Face directories with tiny vocabularies, as libraries of several years wrote them, and what reads them."""

import json
import logging
import warnings

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headjax.tokenizers.tokenizer import END_OF_TEXT
from headjax.tokenizers.vocabularies import train_bpe

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "Cat"]
PIECES += ["人", "有", "##有", "été", "ete"]
TEXTS = [
    "The cats sat",
    "Cat 人有 été",
    "the [ENT] cat <x> sat",
    " the\tété[ENT]",
    "<x>cat  sat\n\n",
    "sat <mask> on the mat</s>the cat",
    "",
]


def auto(folder, trust_remote_code=False):
    """The tokenizer of `transformers`, whose warnings are of models that are not loaded."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    logging.disable(before)
    return found


def describe(folder, model_type, kind=None, **settings):
    """Writes a `config.json` and a `tokenizer_config.json`."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    declared = {"tokenizer_class": kind} if kind else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared | settings))


def wordpieces(folder, model_type="bert", kind="BertTokenizer", **settings):
    """The single file of the first BERT."""
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    describe(folder, model_type, kind, **settings)


def wordpiece_json(model_type="bert", kind="BertTokenizer", processor=False):
    """A `tokenizer.json` that the `tokenizers` library trained, without or with a post-processor."""

    def write(folder):
        special = {token: number for number, token in enumerate(PIECES)}
        backend = Tokenizer(models.WordPiece(vocab=special, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.add_special_tokens(PIECES[:5])
        if processor:
            backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        backend.save(str(folder / "tokenizer.json"))
        roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
        describe(folder, model_type, kind, **roles)

    return write


def byte_pairs(folder, special):
    """`vocab.json` and `merges.txt` learned from `TEXTS`."""
    model = json.loads(train_bpe(TEXTS * 3, 290).vocabulary)["model"]
    tokens = [*special, *(token for token in sorted(model["vocab"], key=model["vocab"].get) if token != END_OF_TEXT)]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))


def two_files(model_type, *special, kind=None):
    def write(folder):
        byte_pairs(folder, special)
        describe(folder, model_type, kind)

    return write


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def bytes_json(model_type, kind=None, template="", **settings):
    """A `tokenizer.json` of pairs of bytes."""

    def write(folder):
        backend = Tokenizer.from_str(train_bpe(TEXTS * 3, 290).vocabulary)
        if template:
            end = (END_OF_TEXT, backend.token_to_id(END_OF_TEXT))
            backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[end])
        backend.save(str(folder / "tokenizer.json"))
        describe(folder, model_type, kind, eos_token=END_OF_TEXT, **settings)

    return write


def spaced(model_type, kind=None, **settings):
    """Pairs that fall back to bytes behind a space, as `transformers` 4 wrote Llama's, Mistral's and Gemma's."""

    def write(folder):
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"▁abcehimnostT", "▁t", "▁s", "at"]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        merges = [("▁", "t"), ("▁", "s"), ("a", "t")]
        backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, byte_fallback=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
        )
        cut = decoders.Strip(" ", 1, 0)
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), cut])
        backend.add_special_tokens(["<unk>", "<s>", "</s>"])
        backend.save(str(folder / "tokenizer.json"))
        describe(folder, model_type, kind, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **settings)

    return write


def unigram(model_type, kind, *special, roles):
    """A unigram model, as of ALBERT, XLM-RoBERTa and T5."""

    def write(folder):
        scored = [(token, 0.0) for token in special]
        scored += [(piece, -1.0 - i / 10) for i, piece in enumerate(["▁", "▁the", "▁cat", "s", "▁s", "at", *"theca"])]
        backend = Tokenizer(models.Unigram(scored, unk_id=special.index("<unk>"), byte_fallback=False))
        backend.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        backend.decoder = decoders.Metaspace(prepend_scheme="always")
        backend.add_special_tokens(list(special))
        backend.save(str(folder / "tokenizer.json"))
        describe(folder, model_type, kind, **roles)

    return write


CLS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "[MASK]"}
S = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}

DIRECTORIES = {
    "bert vocab.txt": wordpieces,
    "bert cased vocab.txt": lambda folder: wordpieces(folder, do_lower_case=False, strip_accents=True),
    "bert without a class": wordpiece_json(kind=None),
    "bert without a post-processor": wordpiece_json(),
    "bert of a generic class": wordpiece_json(kind="PreTrainedTokenizerFast", processor=True),
    "distilbert": wordpiece_json("distilbert", "DistilBertTokenizer"),
    "electra": wordpiece_json("electra", "ElectraTokenizerFast"),
    "modernbert": bytes_json("modernbert", "PreTrainedTokenizerFast", f"{END_OF_TEXT} $A"),
    "mpnet": wordpiece_json("mpnet", "MPNetTokenizer", processor=True),
    "albert": unigram("albert", "AlbertTokenizer", "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", roles=CLS),
    "xlm-roberta": unigram("xlm-roberta", "XLMRobertaTokenizer", "<s>", "<pad>", "</s>", "<unk>", "<mask>", roles=S),
    "camembert": unigram("camembert", "CamembertTokenizer", "<s>", "<pad>", "</s>", "<unk>", "<mask>", roles=S),
    "t5": unigram("t5", "T5Tokenizer", "<pad>", "</s>", "<unk>", roles={"eos_token": "</s>", "pad_token": "<pad>"}),
    "gpt2 two files": two_files("gpt2", END_OF_TEXT),
    "roberta two files": two_files("roberta", *ROBERTA, kind="RobertaTokenizer"),
    "bart two files": two_files("bart", *ROBERTA),
    "gpt2 with a prefix": bytes_json("gpt2", "GPT2TokenizerFast", add_prefix_space=True),
    "gpt_neox": bytes_json("gpt_neox", "GPTNeoXTokenizerFast", add_bos_token=True),
    "qwen2 without a class": bytes_json("qwen2"),
    "qwen3": bytes_json("qwen3", "Qwen2Tokenizer"),
    "smollm3": bytes_json("smollm3", "PreTrainedTokenizerFast", f"{END_OF_TEXT} $A {END_OF_TEXT}"),
    "llama": spaced("llama", "LlamaTokenizer", legacy=False, add_eos_token=True),
    "llama legacy": spaced("llama", "LlamaTokenizerFast", legacy=True),
    "llama without a class": spaced("llama"),
    "llama of bytes": bytes_json("llama", "LlamaTokenizer"),
    "mistral": spaced("mistral", "LlamaTokenizer", add_bos_token=True),
    "phi3": spaced("phi3", "LlamaTokenizer"),
    "gemma2": spaced("gemma2", "GemmaTokenizer"),
    "gemma3_text": spaced("gemma3_text", "GemmaTokenizerFast"),
}
"""Writers of directories by family and by what is special about them."""
