"""Names of classes: a classifier numbers its classes, and labels in files find their number by name."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

IGNORED = -100
"""The label of positions that carry no loss."""

_MISSING = frozenset({"", "-", "nan", "null"})
"""Labels in lower case that mean an absent label: blank, as MNLI's files have it (`-`), or as a program wrote it."""

_WHOLE = re.compile(r"(\d+)\.0+")
_NUMBERED = re.compile(r"(?:label_)?(\d+)", re.IGNORECASE)
_SYNSET = re.compile(r"n\d{8}")
_IMAGENET = 1000


def is_missing(label: object, *, numbers: bool = False) -> bool:
    """Return whether a label stands for an absent one: blank, `-`, `nan` or `null`.

    Unless labels are `numbers`, infinity and -1 do so too; `datasets` writes -1 for an absent class.
    """
    text = str(label).strip().casefold()
    if text in _MISSING or numbers:
        return text in _MISSING
    try:
        number = float(text)
    except ValueError:
        return False
    return number == -1.0 or not math.isfinite(number)


def label_name(label: str) -> str:
    """Return the name of a label's class: the text without surrounding blanks; a whole number without its `.0`."""
    number = _WHOLE.fullmatch(label.strip())
    return label.strip() if number is None else number[1]


def class_numbers(count: int) -> tuple[str, ...]:
    """The numbers of this many classes as their names: `("0", "1", ...)`."""
    return tuple(str(number) for number in range(count))


def sorted_names(names: Collection[str]) -> tuple[str, ...]:
    """Return the names of classes in the order of their numbers: as numbers if they all are, else as text."""
    texts = sorted(names)
    return tuple(sorted(texts, key=int) if all(name.isdecimal() for name in texts) else texts)


def tell_nothing(names: Sequence[str]) -> bool:
    """Return whether the classes have no names but their numbers (`0`, `1` or `LABEL_0`, `LABEL_1`)."""
    matches = map(_NUMBERED.fullmatch, names)
    return all(match is not None and int(match[1]) == number for number, match in enumerate(matches))


class ClassIndex:
    """The numbers of classes by name; case counts only where names differ in nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._exact, self._folded = _numbers(names), _numbers([name.casefold() for name in names])

    def find(self, label: str) -> int | None:
        """Return the number of the class that a label names; None where no class has the name, or several have."""
        if label in self._exact:
            return self._exact[label]
        return self._folded.get(label.casefold())


def _numbers(names: Sequence[str]) -> dict[str, int | None]:
    """Return the number of each name; None for a name that occurs twice."""
    numbers: dict[str, int | None] = {}
    for number, name in enumerate(names):
        numbers[name] = None if name in numbers else number
    return numbers


def reorder(order: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index among `names` of each name of `order`; None unless both hold the same names, each once."""
    index = ClassIndex(names)
    places = tuple(place for place in map(index.find, order) if place is not None)
    return places if len(places) == len(order) and sorted(places) == list(range(len(names))) else None


def same_classes(names: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two classifications have the same classes in the same order, as far as their names tell.

    ImageNet's folders are named by synset (`n01440764`), in the order in which every ImageNet classifier numbers its
    classes; such names mean nothing either.
    """
    if len(names) != len(others):
        return False
    for side in (names, others):
        synsets = len(side) == _IMAGENET and all(_SYNSET.fullmatch(name) for name in side)
        if synsets or tell_nothing(side):
            return True
    return all(name.casefold() == other.casefold() for name, other in zip(names, others, strict=True))
