from __future__ import annotations

import itertools

from headjax.tokenizers.vocabularies import wordpiece_tokenizer


def test_ten_thousand_real_lines_read_as_hugging_face_reads_them(data_dir):
    """Lower-cased as BERT's uncased models, and as its cased ones, against the library's own BERT tokenizer."""
    from tokenizers import BertWordPieceTokenizer

    path = str(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    files = ("lm/lm1b_heldout.dev.tokens", "lm/wikitext-2-raw/wiki.valid.raw", "mt/newstest/newstest2013.de")
    texts = [(data_dir / name).read_text(encoding="utf-8").split("\n") for name in files]
    lines = list(itertools.islice(itertools.chain(*(text[:4000] for text in texts)), 10_000))
    assert len(lines) == 10_000
    for lowercase in (True, False):
        theirs = BertWordPieceTokenizer(path, lowercase=lowercase).encode_batch(lines, add_special_tokens=False)
        ours = wordpiece_tokenizer(path, lowercase=lowercase).encode(lines)
        different = [line for line, one, two in zip(lines, theirs, ours, strict=True) if one.ids != two.tolist()]
        assert not different
