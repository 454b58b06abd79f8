"""One formulation into another, from the same weights."""
