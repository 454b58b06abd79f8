"""Draw RESULTS.md, docs/results.md and their plots: `python -m results`."""

from results.page import draw

draw()
