"""`headjax evaluate`: the keys of its JSON, and beams for translations alone."""

from headjax.cli import main


def test_words_are_counted_where_the_protocol_counts_them(folder, tmp_path, capsys):
    (tmp_path / "wiki.valid.raw").write_text(" = Heads = \n One head , two heads . \n" * 20)
    for task, shown in ((f"wikitext2:{tmp_path},context=16", True), (str(folder / "text.txt"), False)):
        assert main(["evaluate", str(folder / "model"), "--task", task, "--limit", "4"]) == 0
        assert ("word_perplexity" in capsys.readouterr().out) is shown


def test_wikitext2_states_its_protocol(run, tmp_path):
    (tmp_path / "wiki.valid.raw").write_text(" = Heads = \n One head , two heads . \n" * 20)
    data = run("evaluate", "--task", f"wikitext2:{tmp_path},context=16,stride=8", task=False)
    assert data["protocol"]["context"] == 16
    assert data["protocol"]["stride"] == 8
    assert data["evaluation"]["split"] == "validation"
    assert data["metrics"].keys() == {"loss", "perplexity", "word_perplexity", "bits_per_byte"}
