from __future__ import annotations

import dataclasses

import pytest

from headjax.core.errors import ConfigError
from headjax.core.fields import Size
from headjax.data.task import DataConfig, TaskData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(DataConfig):
    length: Size = 4

    def load(self, tokenizer=None):
        return TaskData(tokenizer, (), range(self.length), {})


def test_fields_are_checked_and_classes_are_a_choice_of_the_kind():
    config = Counted(length=3)
    assert config.for_classes(("bad", "good")) is config
    assert len(config.load().validation) == 3
    assert config.load().measured is None
    for value in (0, 2.0, "4"):
        with pytest.raises(ConfigError, match=r"^length: "):
            Counted(length=value)
