"""Claims: verdicts by intervals, one line each in the summary, one section each in RESULTS.md."""

import re
from pathlib import Path

import pytest

from docs.claim_list import CLAIMS
from docs.claims import Claim, Row, anchor, section, summary, told
from docs.measures import Found, duration, estimate, mean_and_interval, ratio_and_interval, within

RESULTS = Path(__file__).parents[2] / "RESULTS.md"


def claim(*found):
    rows = [Row(f"setting {number}", lambda each=each: each) for number, each in enumerate(found)]
    return Claim(
        "mine", "A heading, of mine", "Somebody", "It works", rows, "headjax grid", lambda: "2 s", "docs/a_b.md"
    )


def test_the_summary_has_a_line_a_claim_and_counts_all_verdicts():
    made = summary([claim(Found("1 (0 to 2)", "held"), Found("3", "not decided")), claim(Found("4", "held"))])
    assert made.startswith("2 claims, 3 measurements: 2 held, 0 did not hold, 1 not decided.")
    assert (
        "| [It works](#a-heading-of-mine) (Somebody) | setting 0 | 1 (0 to 2); 1 more | "
        "**held** in 1, **not decided** in 1 | `headjax grid`, 2 s |"
    ) in made
    assert "| setting 0 | 4 | **held** | `headjax grid`, 2 s |" in made


def test_a_section_has_every_measurement():
    made = section(claim(Found("1", "held"), Found("2", "did not hold")))
    assert made.startswith("Somebody: *It works.*")
    assert "| setting 1 | 2 | **did not hold** |" in made
    assert made.endswith("Time: 2 s. The whole tables and their limits: [a b](docs/a_b.md).")


def test_equal_verdicts_are_told_once():
    assert told(["held"]) == "**held**"
    assert told(["held", "held"]) == "**held** (2 of 2)"
    assert told(["not decided", "held", "not decided"]) == "**held** in 1, **not decided** in 2"


def test_every_claim_has_its_heading_and_its_links_lead_there():
    text = RESULTS.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    for each in CLAIMS:
        assert each.heading in headings
        after = text.split(f"## {each.heading}\n")[1].split("\n## ")[0]
        assert f"<!-- claims: {each.name} -->" in after
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert set(links) == {anchor(each.heading) for each in CLAIMS} <= {anchor(heading) for heading in headings}


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.9, "held"), (0.1, 1.1, "not decided"), (1.1, 2.0, "did not hold")]
)
def test_a_bound_is_judged_by_the_whole_interval(low, high, verdict):
    assert within(low, high, 1.0) == verdict


def test_means_and_ratios_have_intervals_of_students_t():
    assert mean_and_interval([1.0, 2.0, 3.0]) == "2.00 (-0.48 to 4.48)"  # 2 -+ 4.303 / sqrt(3)
    assert mean_and_interval([0.5], 1) == "0.5"
    assert ratio_and_interval([2.0, 2.0], [1.0, 1.0]) == "2.00 (2.00 to 2.00)"
    assert estimate(-0.001, -0.5, 0.5, 2) == "0.00 (-0.50 to 0.50)"


def test_durations_are_in_the_unit_that_suits_them():
    assert [duration(each) for each in (59, 89, 90, 1200, 6000, 40000)] == [
        "59 s",
        "89 s",
        "1.5 min",
        "20 min",
        "1.7 h",
        "11 h",
    ]
