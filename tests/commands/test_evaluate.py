"""`headjax evaluate`: the keys of its JSON, and beams for translations alone."""

from headjax.cli import main


def test_evaluate(run):
    data = run("evaluate")
    assert {"metrics", "examples", "task", "evaluation", "headline", "higher_is_better"} == data.keys()
    assert data["examples"] == 16
    assert data["headline"] == "perplexity"
    assert data["metrics"]["perplexity"] > 1


def test_beams_are_for_translations(folder, capsys):
    words = ["evaluate", str(folder / "model"), "--task", str(folder / "text.txt"), "--beams", "2"]
    assert main(words) == 2
    assert "text.txt is not about translations" in capsys.readouterr().err
    assert main([*words[:-1], "-2"]) == 2
    assert "--beams: must not be negative, got -2" in capsys.readouterr().err
