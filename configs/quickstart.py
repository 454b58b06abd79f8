"""A small decoder language model on text that ships with Python; the three formulations of `headjax quickstart`.

    headjax train --config configs/quickstart.py --workdir runs/standard
    headjax train --config configs/quickstart.py:formulation=fixed --workdir runs/fixed
    headjax train --config configs/quickstart.py:formulation=collaborative --workdir runs/collaborative

`headjax quickstart` trains all three, scores and prunes their heads and writes a report.
"""

from ml_collections import ConfigDict

from headjax.core.configuration import parse_arguments
from headjax.quickstart.settings import STEPS, training


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: formulation (standard, fixed, collaborative), steps, path (a text file, or a folder of them)."""
    knobs = parse_arguments(arg, formulation="standard", steps=STEPS, path="")
    return ConfigDict(training(knobs.formulation, steps=knobs.steps, path=knobs.path))
