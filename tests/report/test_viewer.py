"""The attention viewer of a page, in a browser: a click, a pointer, keys, a picture."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from headjax.report.page import Section, render_page
from tests.report.browser import CHROMIUM, browse, write_probed

WEIGHTS = np.zeros((4, 3, 3), np.uint8)
WEIGHTS[:] = 255 * np.eye(3, dtype=np.uint8)
WEIGHTS[3] = [[255, 0, 0], [51, 204, 0], [0, 102, 153]]
HEADS = ["encoder/0/0", "encoder/0/1", "encoder/1/0", "encoder/1/1"]
HOSTILE = "</script><b>"

PROBE = """
addEventListener("error", (event) => { document.body.dataset.error = event.message; });
addEventListener("load", () => {
  const chosen = () => document.querySelector(".heads [aria-pressed=true]").dataset.head;
  const keys = () => [...document.querySelectorAll(".keys li")].map((key) => key.textContent).join(" ");
  const outcome = () => document.querySelector(".outcome").textContent;
  const found = { first: chosen(), whole: outcome() };
  document.querySelector('[data-head="encoder/1/1"]').click();
  found.clicked = document.querySelector(".panel h3").textContent;
  document.querySelectorAll(".tokens button")[1].dispatchEvent(new Event("pointerenter"));
  found.pointed = keys();
  document.querySelector('[data-off="encoder/1/1"]').click();
  found.off = outcome();
  const focused = document.querySelector(".heads [tabindex='0']");
  focused.focus();
  focused.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
  found.moved = chosen();
  found.wide = document.documentElement.scrollWidth - innerWidth;
  document.body.dataset.found = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module")
def page():
    stack = {
        "queries": ["a", HOSTILE, "c"],
        "keys": ["a", HOSTILE, "c"],
        "heads": HEADS,
        "weights": base64.b64encode(WEIGHTS.tobytes()).decode(),
    }
    names = [*HEADS, "encoder/0", "encoder/1"]
    without = {name: {"prediction": f"no ({number}%)", "change": 0.25} for number, name in enumerate(names)}
    view = {"stacks": {"encoder": stack}, "whole": "yes (90%)", "without": without}
    importance = dict(zip(HEADS, (0.1, 0.4, 0.2, 0.3), strict=True))
    data = {"importance": importance, "unit": "nats", "examples": [view, view]}
    return render_page("Heads", "", [Section("What each head attends to", viewer=data)])


def test_no_text_ends_the_data_and_pages_without_a_viewer_have_no_part_of_it(page):
    assert page.count("</script>") == 2  # that of the data, that of the page
    assert "<b>" not in page.split('type="application/json">')[1].split("</script>")[0]
    assert "class Viewer" not in render_page("Heads", "", [Section("Text", "Text.")])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_one_head_and_what_is_without_it(page, tmp_path):
    write_probed(page, PROBE, tmp_path / "page.html")
    became = browse(tmp_path / "page.html", "--window-size=500,1400")
    assert "data-error" not in became
    found = json.loads(re.search(r'data-found="([^"]*)"', became)[1].replace("&quot;", '"'))
    assert found.pop("pointed").startswith("a20% ")
    assert found == {
        "first": "encoder/0/1",  # the most important one
        "whole": "Prediction: yes (90%)",
        "clicked": "encoder/1/1, importance 0.30",
        "off": "Prediction: no (3%), with all heads yes (90%); nats: 0.25",
        "moved": "encoder/0/1",
        "wide": 0,
    }
    picture = tmp_path / "page.png"
    browse(tmp_path / "page.html", "--window-size=500,1400", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")).reshape(-1, 3)
    assert (pixels == (0x00, 0x72, 0xB2)).all(axis=1).sum() > 1000  # weights are drawn
