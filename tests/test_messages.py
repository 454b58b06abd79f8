"""The wording of every error, once: other tests assert its type and the field or file that it names.

After a change that is meant, `HEADJAX_UPDATE_LISTINGS=1 pytest tests/test_messages.py` writes the listing anew.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

LISTING = Path(__file__).with_name("golden") / "messages.txt"
PACKAGE = Path(__file__).parents[1] / "headjax"


def messages(tree: ast.Module) -> Iterator[str]:
    """The texts of errors in a file, with the source of what is put into them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "require" and len(node.args) == 3:
            yield f"{text_of(node.args[1])}: {text_of(node.args[2])}"
        elif name.endswith("Error") and node.args:
            yield text_of(node.args[0])


def text_of(node: ast.expr) -> str:
    """A text as it is written, with its parts that are computed in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "{" + ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node) + "}"


def test_errors_say_what_the_listing_says():
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    texts = {text.replace("\n", "\\n") for tree in trees for text in messages(tree)}
    found = "".join(f"{text}\n" for text in sorted(texts) if " " in text)
    if os.environ.get("HEADJAX_UPDATE_LISTINGS"):
        LISTING.write_text(found)
    listed = LISTING.read_text().splitlines() if LISTING.exists() else []
    gone, new = (sorted(one - other) for one, other in ((set(listed), texts), (set(found.splitlines()), set(listed))))
    assert (gone, new) == ([], []), "if that is meant, run this file with HEADJAX_UPDATE_LISTINGS=1"
