"""The import benchmark: time and memory of one reading."""

import json

from benchmarks import hub


def test_a_reading_reports_time_memory_and_arrays(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(hub.READERS, "fake", lambda: lambda directory: {"a": directory, "b": directory})
    hub.read_and_report("fake", str(tmp_path))
    found = json.loads(capsys.readouterr().out)
    assert found["arrays"] == 2
    assert found["seconds"] > 0
    assert found["peak_bytes"] >= found["before_bytes"] > 0
