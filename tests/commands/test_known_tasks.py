"""The list of tasks comes from the tables that load them."""

from headjax.commands.tasks import known_tasks
from headjax.data.tasks import TASKS
from headjax.evaluation.specs import NAMED


def test_every_task_says_who_takes_it_and_what_it_needs():
    found = known_tasks()
    assert [one.name for one in found] == sorted({*NAMED, *TASKS})
    for one in found:
        assert (one.evaluate, one.prepare) == (one.name in NAMED, one.name in TASKS)
        assert one.needs
        assert one.metrics or not one.prepare
