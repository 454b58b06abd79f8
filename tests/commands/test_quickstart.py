"""`headjax quickstart`: what it refuses before it trains."""

from headjax.cli import main


def test_it_trains_for_a_step_at_least(tmp_path, capsys):
    assert main(["quickstart", "--workdir", str(tmp_path / "run"), "--steps", "0"]) == 2
    assert capsys.readouterr().err == "headjax: error: --steps: must be an integer of at least 1, got 0\n"
    assert not (tmp_path / "run").exists()
