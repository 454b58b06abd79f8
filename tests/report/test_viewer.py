"""The attention viewer of a page, in a browser: a click, a pointer, keys, a picture."""

import base64
import io
import re
import subprocess

import numpy as np
import pytest
from PIL import Image

from headjax.report.page import Section, render_page
from tests.report.test_page import CHROMIUM

WEIGHTS = np.zeros((4, 3, 3), np.uint8)
WEIGHTS[:] = 255 * np.eye(3, dtype=np.uint8)
WEIGHTS[3] = [[255, 0, 0], [51, 204, 0], [0, 102, 153]]
HEADS = ["encoder/0/0", "encoder/0/1", "encoder/1/0", "encoder/1/1"]
HOSTILE = "</script><b>"

PROBE = """
<script>
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
</script>
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


def test_no_text_ends_the_data(page):
    assert page.count("</script>") == 2  # that of the data, that of the page
    assert "<b>" not in page.split('type="application/json">')[1].split("</script>")[0]


def test_pages_without_a_viewer_have_no_part_of_it():
    assert "class Viewer" not in render_page("Heads", "", [Section("Text", "Text.")])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_one_head_and_what_is_without_it(page, tmp_path):
    probed = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page).replace("</body>", f"{PROBE}</body>")
    (tmp_path / "page.html").write_text(probed)
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=3000", "--window-size=500,1400"]
    address = f"file://{tmp_path}/page.html"
    shown = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr
    assert "data-error" not in shown.stdout
    found = re.search(r'data-found="([^"]*)"', shown.stdout)[1].replace("&quot;", '"')
    for name, value in {
        "first": "encoder/0/1",  # the most important one
        "whole": "Prediction: yes (90%)",
        "clicked": "encoder/1/1, importance 0.30",
        "off": "Prediction: no (3%), with all heads yes (90%); nats: 0.25",
        "moved": "encoder/0/1",
        "wide": 0,
    }.items():
        assert f'"{name}":"{value}"' in found or f'"{name}":{value}' in found, found
    assert '"pointed":"a20% ' in found
    assert '80% c0%"' in found
    picture = tmp_path / "page.png"
    subprocess.run([*command, f"--screenshot={picture}", address], capture_output=True, timeout=120, check=True)
    pixels = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")).reshape(-1, 3)
    assert (pixels == (0x00, 0x72, 0xB2)).all(axis=1).sum() > 1000  # weights are drawn
