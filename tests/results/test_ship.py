"""The model card says what was measured on the stored weights."""

import hashlib
import re

from headjax.data.text_data import LanguageConfig
from headjax.quickstart.text import FOLDER, demo_model
from results.experiments import ship


def test_the_card_names_the_run_the_weights_and_losses(tmp_path, monkeypatch):
    text = "\n\n".join(f"def square_{i}(x):\n    return x * {i}  # {'so' * (i % 7)}" for i in range(1200))
    (tmp_path / "code.txt").write_text(text)

    def tiny(embedded, length):
        assert embedded == "code"
        return LanguageConfig(path=str(tmp_path / "code.txt"), length=length)

    monkeypatch.setattr(ship, "LanguageConfig", tiny)
    weights = FOLDER / "model.safetensors"
    card = ship.card(demo_model(), {"steps": 12, "seed": 3}, weights)
    assert "12 steps, seed 3" in card
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in card
    rows = re.findall(r"^\| (\w+ \w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", card, flags=re.M)
    assert [row[0] for row in rows] == ["unigram counts", "bigram counts", "trigram counts", "this model"]
    for _, loss, perplexity, _ in rows:
        assert abs(2.718281828 ** float(loss) / float(perplexity) - 1) < 0.02
