"""A model's foldable view: well-formed, complete, and nothing in it is read as markup."""

from __future__ import annotations

from html.parser import HTMLParser

from headjax.models.tasks import Classification
from tests import tiny
from tests.models.test_encoder import config


class Reader(HTMLParser):
    """Collects the text and the titles of what folds, and checks that every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.titles, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "summary":
            self.titles.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "summary" in self.open:
            self.titles[-1] += data


def test_a_model_folds():
    names = ("<script>", "a & b")
    model = tiny.model(config(num_layers=2, task=Classification(classes=2, names=names)))
    model = model.replace(history=({"action": "train", "steps": 7, "metrics": {"loss": 0.5}},))
    view = Reader(model._repr_html_())
    assert view.text.startswith(repr(model))
    assert view.titles[0] == "attention"
    assert f"parameters ({model.num_parameters:,} parameters)" in view.titles
    assert "1 train" in view.titles
    assert "steps: 7" in view.text
    assert f"float32 {list(model.params['embeddings']['token'].shape)}" in view.text
    assert str(list(names)) in view.text


def test_a_model_without_parameters_has_a_view():
    view = Reader(tiny.model(tiny.decoder_config()).replace(params={})._repr_html_())
    assert "parameters: {}" in view.text
