"""TensorBoard's files: the events in them, and failures as errors of whoever records."""

from __future__ import annotations

import struct
import threading

from headjax.training.recording import Board


def events(folder):
    """The events of all files of a folder, in the order of the files' names; a record is framed by its length."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events*")):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def test_scalars_by_step(tmp_path):
    threads = threading.active_count()
    file = Board(tmp_path / "new" / "board", 3)
    file.write(3, {"train/loss": 2.5, "train/tokens": 8.0})
    assert threading.active_count() == threads
    file.close()
    (path,) = (tmp_path / "new" / "board").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    assert path.name.endswith(".3")
    version, start, *scalars = events(path.parent)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (3, 1)
    assert [(event.step, event.summary.value[0].tag, event.summary.value[0].simple_value) for event in scalars] == [
        (3, "train/loss", 2.5),
        (3, "train/tokens", 8.0),
    ]
