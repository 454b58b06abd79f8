"""Files of data: the folders of data sets, the files of a path, and rows of files that are no tables."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import io
import itertools
import math
import operator
import re
import struct
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.core.class_names import class_numbers, sorted_names
from headjax.core.errors import DataError
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split, document
from headjax.storage.files import check_characters, first_line, parse_json, read_bytes, read_lines, read_text
from headjax.storage.paths import files_below, matches, size_of, source_of

TEXT_SUFFIXES = (".md", ".txt")  # suffixes of the files that are read when a folder of texts is named

BOOKKEEPING = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files in folders of the library `datasets` that hold no rows."""


def find_files(path: str | Path, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> list[Path]:
    """Return the files that a path stands for, sorted: a file, those of a folder with a suffix, a pattern's matches."""
    path = source_of(path)
    if path.is_dir():
        paths, expected = visible(path), f"file in this folder whose name ends in {', '.join(suffixes)}"
        paths = (file for file in paths if has_suffix(file, suffixes))
    elif path.exists() or not glob.has_magic(str(path)):
        paths, expected = iter([path] if path.exists() else []), "such file or folder"
    else:
        paths, expected = matches(path), "file matches this pattern"
    files = sorted(file for file in paths if not file.is_dir())
    if not files:
        raise DataError(f"{path}: no {expected}")
    return files


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of the suffixes, or in one with `.gz`."""
    return file.name.lower().removesuffix(".gz").endswith(suffixes)


def suffix_of(file: Path) -> str:
    """Return the suffix of a file's name without `.gz`, in lower case."""
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def packed_or_plain(file: Path) -> Path | None:
    """Return the file, or the one of its name with `.gz`; None if neither is there."""
    return next((path for path in (file, file.with_name(f"{file.name}.gz")) if path.is_file()), None)


def visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, without hidden ones and what the library `datasets` keeps beside data."""
    for name in files_below(folder):
        parts = name.split("/")
        if parts[-1] not in BOOKKEEPING and not any(part.startswith((".", "cache-")) for part in parts):
            yield folder.joinpath(*parts)


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")

FOLDERS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("validation", "val", "test")}
"""Names that the folder of a split may have."""

MNIST = ("train", "t10k")  # first parts of the names of MNIST's files, by split


class ImageRows(NamedTuple):
    """Images with labels, each read by its number; whether they are of MNIST's files."""

    rows: Rows
    classes: tuple[str, ...]
    fingerprint: str
    mnist: bool = False


def _is_mnist(folder: Path) -> bool:
    return packed_or_plain(folder / f"{MNIST[0]}-images-idx3-ubyte") is not None


def is_image_folder(folder: Path) -> bool:
    """Return whether a folder holds files of MNIST's format, or images in folders by split and class."""
    splits = (folder / name for names in FOLDERS.values() for name in names)
    classes = (child for split in splits if split.is_dir() for child in _shown(split) if child.is_dir())
    return _is_mnist(folder) or any(map(_images, classes))


def image_rows(folder: Path) -> ImageRows:
    """Return the images of a folder in one of both formats; MNIST's test images are evaluated on."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not _is_mnist(folder):
        return _folder_rows(folder)
    arrays = [_mnist(folder, split) for split in MNIST]
    classes, largest = (int(labels.max()) for _, labels in arrays)
    if largest > classes:
        place = folder / f"{MNIST[1]}-labels-idx1-ubyte"
        raise DataError(f"{place}: label {largest}, but training has the {classes + 1} classes from 0")
    data = hashlib.sha256(b"".join(each.tobytes() for each in arrays[0])).hexdigest()[:16]

    def row(images: np.ndarray, labels: np.ndarray, index: int) -> Row:
        return Row(f"{folder}: image {index}", {"image": images[index], "label": int(labels[index])})

    rows: dict[Split, RowSource] = {
        split: RowSource.by_number(functools.partial(row, *some), len(some[1]))
        for split, some in zip(SPLITS, arrays, strict=True)
    }
    return ImageRows(rows, class_numbers(classes + 1), data, mnist=True)


def _mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels `[images, height, width]` and labels of a split in MNIST's format (Fashion-MNIST, KMNIST)."""
    files = [folder / f"{split}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    pixels, labels = (read_idx(packed_or_plain(file) or file) for file in files)
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        shapes = f"they are {[*pixels.shape]} and {[*labels.shape]}"
        raise DataError(f"{files[0]}: images and labels do not belong together, {shapes}")
    return pixels, labels


def read_idx(file: Path) -> np.ndarray:
    """Return an array of bytes from an IDX file: two zero bytes, type 8, the number of axes, their sizes, values."""
    data = read_bytes(file)
    start = 4 + 4 * data[3] if len(data) > 3 else 4
    shape = struct.unpack(f">{data[3]}I", data[4:start]) if len(data) >= start else (0,)
    if data[:3] != b"\0\0\x08" or len(data) != start + math.prod(shape) or not math.prod(shape):
        raise DataError(f"{file}: not an IDX file of bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _folder_rows(root: Path) -> ImageRows:
    """Return the images of `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG, or BMP), as ImageNet is unpacked.

    A folder with `validation` alone is one to judge on. Classes are numbered in the order of their names: as numbers if
    they all are, else as text. An image is read with its row.
    """
    there = {split: [root / name for name in names if (root / name).is_dir()] for split, names in FOLDERS.items()}
    if not there["validation"]:
        missing = next(split for split, folders in there.items() if not folders)
        raise DataError(f"{root}: no folder {' or '.join(FOLDERS[missing])} in it")
    classes: tuple[str, ...] = ()
    files: dict[Split, list[tuple[Path, int]]] = {}
    for split, folder in ((split, folders[0]) for split, folders in there.items() if folders):
        names = sorted_names([child.name for child in _shown(folder) if child.is_dir()])
        if classes and names != classes:
            raise DataError(f"{folder}: its {len(names)} folders are not named like the {len(classes)} to train on")
        classes = names
        files[split] = [(file, number) for number, name in enumerate(classes) for file in _images(folder / name)]
        if not files[split]:
            raise DataError(f"{folder}: no images in its folders")
    listed = [(str(file.relative_to(root)), size_of(file), number) for file, number in files.get("train", ())]

    def row(some: list[tuple[Path, int]], index: int) -> Row:
        file, number = some[index]
        return Row(str(file), {"image": pixels(read_bytes(file), str(file)), "label": number})

    rows = {split: RowSource.by_number(functools.partial(row, some), len(some)) for split, some in files.items()}
    return ImageRows(rows, classes, hashlib.sha256(repr(listed).encode()).hexdigest()[:16])


def _shown(folder: Path) -> Iterator[Path]:
    return (child for child in folder.iterdir() if not child.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in _shown(folder) if file.suffix.lower() in IMAGE_SUFFIXES)


def pixels(data: bytes, place: str) -> np.ndarray:
    """Return an encoded image (PNG, JPEG, ...) as uint8 `[height, width]` or `[height, width, 3]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):  # which the library would clip at 255
                return (np.asarray(image) >> 8).astype(np.uint8)
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except (Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{place}: not an image ({first_line(error)})") from None


def whole_text(file: Path) -> Iterator[Row]:
    """Yield all of a text file."""
    yield document(str(file), read_text(file))


_ARTICLE = re.compile(r" = [^=\n].* = *$")

LONGEST = 2**24  # number of characters after which a blank line ends a document; after twice as many, any line does


def articles(file: Path) -> Iterator[Row]:
    """Yield the documents of a text file: WikiText's articles, or all of it."""
    place, size, has_article, any_text = str(file), 0, False, False
    lines: list[str] = []
    for number, line in enumerate(read_lines(file), start=1):
        heading = _ARTICLE.match(line) and (has_article or not any_text)
        too_long = size >= LONGEST and (not line.strip() or size >= 2 * LONGEST)
        if (heading and has_article) or too_long:
            yield document(place, "".join(lines))
        if heading or too_long:
            lines, size, has_article = [], 0, has_article or bool(heading)
            place = f"{file}: line {number}"
        lines.append(line)
        size += len(line)
        any_text = any_text or bool(line.strip())
    yield document(place, "".join(lines))


def text_lines(file: Path) -> Iterator[Row]:
    """Yield every line of a text file that is not blank."""
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield document(f"{file}: line {number}", line.strip())


def aligned_pairs(path: str, source: str, target: str) -> Iterator[Row]:
    """Yield the pairs of lines of `PATH.source` and `PATH.target`, each also packed; those with an empty side not."""
    files = []
    for place in (f"{path}.{source}", f"{path}.{target}"):
        if (file := packed_or_plain(source_of(place))) is None:
            raise DataError(f"{place}: no such file, packed or not")
        files.append(file)
    number = 0
    for line, (first, second) in enumerate(itertools.zip_longest(*map(read_lines, files))):
        if first is None or second is None:
            shorter, longer = files if first is None else files[::-1]
            raise DataError(f"{shorter}: {line:,} lines, but {longer.name} has more")
        if first.strip() and second.strip():
            yield Row(f"{path}: pair {number}", {"source": first.strip(), "target": second.strip()})
            number += 1
    if not number:
        raise DataError(f"{path}: no line has text on both sides")


def questions(file: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD v1.1 file, with the fields of `QuestionForm`."""
    whole = parse_json(read_text(file), str(file))
    try:
        paragraphs = [paragraph for article in whole["data"] for paragraph in article["paragraphs"]]
        rows = [_question(file, each["context"], entry) for each in paragraphs for entry in each["qas"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not rows:
        raise DataError(f"{file}: no questions")
    return iter(rows)


def _question(file: Path, context: str, entry: Mapping[str, Any]) -> Row:
    answers, place = entry["answers"], f"{file}: question {entry['id']}"
    # The order of the fields is part of the hash of prepared rows.
    values = {
        "question": check_characters(entry["question"].strip(), place),
        "id": entry["id"],
        "context": check_characters(context, place),
        "answers": tuple(check_characters(answer["text"], place) for answer in answers),
        "start": operator.index(answers[0]["answer_start"]) if answers else 0,
    }
    return Row(place, values)


CONLL = (".conll", ".bio", ".iob", ".iob2")  # suffixes of files in CoNLL's format


def tagged_words(file: Path) -> Iterator[Row]:
    """Yield the sentences of a file in CoNLL's format: a word a line, its tag last, and a blank line between them."""
    words: list[str] = []
    tags: list[str] = []
    start = 0
    for number, line in enumerate(itertools.chain(read_lines(file), [""]), start=1):
        cells = line.split()
        if cells and cells[0] != "-DOCSTART-" and not line.startswith("# "):
            if len(cells) < 2:
                raise DataError(f"{file}: line {number}: expected a word and its tag, got {line.strip()!r}")
            start = start if words else number
            words.append(cells[0])
            tags.append(cells[-1])
        elif words and not cells:
            yield Row(f"{file}: line {start}", {"tokens": tuple(words), "tags": tuple(tags)})
            words, tags = [], []
    if not start:
        raise DataError(f"{file}: no words with tags")


# The source code of Python's standard library.

LIBRARY = Path(sysconfig.get_path("stdlib"))

NOT_READ = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "encodings", "pydoc_data"})
"""Folders whose source is not read: tests, applications, other people's packages, tables of characters, and texts."""


def library_sources() -> list[Row]:
    """Return the standard library's Python files, but those of `NOT_READ`, of one machine alone, and not in UTF-8."""
    documents = []
    for file in sorted(LIBRARY.rglob("*.py")):
        relative = file.relative_to(LIBRARY)
        if NOT_READ & set(relative.parts[:-1]) or file.name.startswith("_sysconfigdata"):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            documents.append(document(relative.as_posix(), file.read_text(encoding="utf-8")))
    if not documents:
        raise DataError(f"{LIBRARY}: this Python carries no library sources; name text files")
    return [row for row in documents if row.values["text"].strip()]


def reference_topics() -> list[Row]:
    """Return the topics of Python's language reference, by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("python: this Python carries no language reference (pydoc_data)") from None
    return [document(f"topics/{name}", topics[name]) for name in sorted(topics)]
