"""A page in a browser, with a script of the test's own in it."""

import re
import shutil
import subprocess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write_probed(page, probe, path):
    """Writes a page with one more script, which the page's policy would refuse."""
    probed = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    path.write_text(probed.replace("</body>", f"<script>{probe}</script></body>"))


def browse(path, *options):
    """Opens a page without a window; returns what it has become, once its scripts have run."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *options]
    command += [f"--user-data-dir={path.parent}/profile", "--virtual-time-budget=5000", "--dump-dom", f"file://{path}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr
    return shown.stdout
