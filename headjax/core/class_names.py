"""Names of classes: a classifier numbers its classes, and labels in files find their number by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

MISSING = frozenset({"", "nan", "null"})
"""Labels in lower case that mean an absent label, unless a class has that very name."""

_NUMBERED = re.compile(r"(?:label_)?(\d+)", re.IGNORECASE)
_SYNSET = re.compile(r"n\d{8}")
_IMAGENET = 1000


def class_numbers(count: int) -> tuple[str, ...]:
    """The numbers of this many classes as their names: `("0", "1", ...)`."""
    return tuple(str(number) for number in range(count))


def tell_nothing(names: Sequence[str]) -> bool:
    """Return whether the classes have no names but their numbers (`0`, `1` or `LABEL_0`, `LABEL_1`)."""
    found = [_NUMBERED.fullmatch(name) for name in names]
    return all(match is not None and int(match[1]) == number for number, match in enumerate(found))


def find_class(label: str, names: Sequence[str]) -> int | None:
    """The number of the class that a label names, upper and lower case told apart only where that is needed.

    None where no class has the name, or several have.
    """
    for matches in (
        [number for number, name in enumerate(names) if name == label],
        [number for number, name in enumerate(names) if name.casefold() == label.casefold()],
    ):
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def reorder(wanted: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """For each wanted name its place among `names`; None unless both hold the same names, each once."""
    places = tuple(place for place in (find_class(name, names) for name in wanted) if place is not None)
    return places if len(places) == len(wanted) and sorted(places) == list(range(len(names))) else None


def same_classes(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two classifications number their classes alike, as far as their names tell.

    ImageNet's folders are named by synset (`n01440764`), in the order in which every ImageNet classifier numbers its
    classes; such names tell nothing either.
    """
    if len(names) != len(others):
        return False
    if any(tell_nothing(side) or _of_imagenet(side) for side in (names, others)):
        return True
    return all(name.casefold() == other.casefold() for name, other in zip(names, others, strict=True))


def _of_imagenet(names: Sequence[str]) -> bool:
    return len(names) == _IMAGENET and all(_SYNSET.fullmatch(name) for name in names)
