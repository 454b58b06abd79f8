"""A small BERT pre-trained on books and WikiText-2: masked tokens and the next sentence.

    mkdir texts
    cp $HEADJAX_DATA/lm/gutenberg/*.txt texts
    cp $HEADJAX_DATA/lm/wikitext-2-raw/wiki.valid.raw texts/wikitext.txt
    headjax prepare bert_pretraining --source texts --tokenizer vocab.txt --length 64 --out prepared/bert
    headjax train --config configs/small/pretraining.py:data=prepared/bert --workdir runs/bert
    headjax evaluate runs/bert/model --task prepared/bert

vocab.txt is BERT's uncased vocabulary.

Measured without the notices of Project Gutenberg at either end of the books, with steps=100,batch_size=16 (1,600 pairs;
1.5 minutes of CPU time on 2 shared cores): loss 7.76, 0.065 of the masked tokens right, 0.544 of the next-sentence
labels, which is the share of the more frequent one. The pipeline works; so short a run learns word frequencies only.
"""

from ml_collections import ConfigDict

from headjax.core.fields import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: data (a prepared folder), steps, batch_size, peak (learning rate), width, num_layers, seed."""
    knobs = parse_arguments(
        arg, data="prepared/bert", steps=400, batch_size=32, peak=2e-3, width=128, num_layers=3, seed=0
    )
    return ConfigDict(
        {
            "model": {
                "kind": "encoder",
                "vocab_size": 30522,
                "max_length": 64,
                "width": knobs.width,
                "num_layers": knobs.num_layers,
                "attention": {"kind": "multi_head", "num_heads": knobs.width // 32, "head_dim": 32},
                "hidden": 4 * knobs.width,
                "task": {"kind": "pretraining"},
            },
            "data": {"task": f"bert_pretraining:{knobs.data}"},
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": knobs.peak, "warmup_steps": knobs.steps // 10},
                "b2": 0.999,
            },
            "seed": knobs.seed,
        }
    )
