"""Classification by a class token and a distillation token (DeiT)."""

from __future__ import annotations

import dataclasses

import jax

from headjax.core.fields import Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.base import Batch, Loss, Output
from headjax.models.inputs import abstract_integers, batch_array
from headjax.models.linear import linear, linear_tensors
from headjax.models.outputs import IGNORED
from headjax.models.ranges import Range
from headjax.models.tasks.base import Features, Logits, TaskOutput, Vocabulary
from headjax.models.tasks.classification import class_losses, require_names


@kind("distilled_classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilledClassification(TaskOutput):
    """(h_0 W + b + h_1 V + c) / 2: the mean of two classifiers (Touvron et al. 2021, section 4).

    The first reads the class token and learns `labels`, as `Classification` has them; the second reads the distillation
    token and learns `teacher_labels [batch]`, a teacher's answers; without those both learn the labels. Each carries
    half the loss. Their logits come as `extra_logits["cls_logits"]` and `["distillation_logits"]`.

    Attributes:
        classes: number of classes.
        label_smoothing: share of the label's target spread evenly over the classes.
        names: the classes by name, in the order of their numbers; empty where they have numbers only.
    """

    classes: Size
    label_smoothing: Rate = 0.0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_names(self.names, self.classes)

    def tensors(self, width: int, vocabulary: Vocabulary) -> Tensors:
        return {"class": linear_tensors(width, self.classes), "distillation": linear_tensors(width, self.classes)}

    def __call__(self, params: Params, features: Features, key: jax.Array | None) -> Logits:
        first = linear(params["class"], features.hidden[:, 0])
        second = linear(params["distillation"], features.hidden[:, 1])
        return Logits((first + second) / 2.0, {"cls_logits": first, "distillation_logits": second})

    def loss(self, output: Output, batch: Batch) -> Loss:
        learned, counted = class_losses(output.require_logits("cls_logits"), batch, self.label_smoothing)
        taught = {"labels": batch.get("teacher_labels", batch_array(batch, "labels"))}
        distilled, _ = class_losses(output.require_logits("distillation_logits"), taught, 0.0)
        return Loss((learned + counted * distilled) / 2.0, counted)

    def for_evaluation(self) -> DistilledClassification:
        return dataclasses.replace(self, label_smoothing=0.0)

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        classes = Range(self.classes, "classes", ignored=IGNORED)
        return {"labels": classes, "teacher_labels": classes}

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return 4 * width * self.classes

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size,), "labels", "teacher_labels")
