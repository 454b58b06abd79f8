"""Labels find their class by name, and classifications are compared by names."""

from __future__ import annotations

from headjax.core.class_names import class_numbers, find_class, reorder, same_classes, tell_nothing


def test_a_label_finds_its_class_by_case_only_where_that_is_needed():
    assert find_class("Cat", ("dog", "cat")) == 1
    assert find_class("Cat", ("cat", "Cat")) == 1
    assert find_class("CAT", ("cat", "Cat")) is None
    assert find_class("cow", ("dog", "cat")) is None


def test_the_same_names_in_another_order_have_places():
    assert reorder(("b", "a"), ("a", "b")) == (1, 0)
    assert reorder(("b", "c"), ("a", "b")) is None


def test_numbers_and_synsets_tell_nothing():
    assert tell_nothing(class_numbers(3))
    assert not tell_nothing(("1", "0"))
    assert same_classes(("LABEL_0", "LABEL_1"), ("no", "yes"))
    assert not same_classes(("yes", "no"), ("no", "yes"))
    assert not same_classes(("no", "yes"), ("no", "yes", "maybe"))
    assert same_classes([f"n{number:08d}" for number in range(1000)], [f"class {number}" for number in range(1000)])
