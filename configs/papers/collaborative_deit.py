"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): DeiT.

ImageNet. DeiT-B made collaborative after training, and Base3 (3 layers) trained from scratch with `key_dim` key and
query dimensions, cut among the heads or shared by them. Parameters in millions:

    layers=12    concatenate      768: 86.57
                 collaborative    384: 79.64, 256: 77.26, 128: 74.88
    layers=3     concatenate      768: 22.78, 384: 21.01, 192: 20.12, 96: 19.68
                 collaborative    384: 21.04, 192: 20.15, 96: 19.71

DeiT-B without distillation has a top-1 accuracy of 81.8; the paper's tables are not at hand. DeiT's recipe: 300 epochs
in batches of 1024, AdamW at 0.001 (0.0005 for every 512 images) after 5 epochs of warm-up, weight decay 0.05, label
smoothing 0.1, stochastic depth 0.1; random crops, mirroring. Missing of it: scaled crops, mixup and CutMix,
RandAugment and random erasing, each image three times a batch, and the running average of the weights, which its
accuracy does not use. Crops are of the stored 256 x 256 middle of an image. Cost: 4 GPUs; DeiT-B itself takes 53 hours
on 8 V100s.

    headjax inspect --config configs/papers/collaborative_deit.py:layers=3,key_dim=192,collaborative
    headjax prepare imagenet --out D
    headjax train --config configs/papers/collaborative_deit.py:layers=3,key_dim=192,collaborative,data=D --workdir B
    headjax train --config configs/papers/collaborative_deit.py:key_dim=192,collaborative,smoke --workdir runs/smoke
"""

from common import adam, arguments, cut_or_shared, experiment
from ml_collections import ConfigDict

from headjax.data.registry import TASKS

RECIPE = TASKS["imagenet"].recipe("Cordonnier 2020")
STEPS_PER_EPOCH = TASKS["imagenet"].examples // RECIPE.batch_size


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: layers, key_dim, collaborative, classes, data, seed, smoke."""
    knobs = arguments(arg, layers=12, key_dim=768, collaborative=False, classes=1000)
    return experiment(
        knobs,
        model={
            "kind": "vision",
            "width": 768,
            "num_layers": knobs.layers,
            "attention": cut_or_shared(12, knobs.key_dim, knobs.collaborative, scale=64**-0.5, content_bias=True),
            "hidden": 3072,
            "image_size": 224,
            "patch_size": 16,
            "stochastic_depth": 0.1,
            "task": {"kind": "classification", "classes": knobs.classes, "dropout": 0.0, "label_smoothing": 0.1},
        },
        data={"task": "imagenet", "form": {"size": 224}},
        batch_size=RECIPE.batch_size,
        steps=RECIPE.epochs * STEPS_PER_EPOCH,
        optimizer=adam(
            RECIPE._replace(warmup_steps=5 * STEPS_PER_EPOCH),
            schedule="cosine",
            final=0.01,
            b2=0.999,
            weight_decay=0.05,
            clip_norm=0.0,
        ),
        # Without recomputing, DeiT-B's 128 images a core are more than a v3-8 holds (docs/tpu.md).
        compute={"dtype": "bfloat16", "remat": "dots"},
        every=STEPS_PER_EPOCH,
    )
