"""Trials: one model converted, or without heads, in many ways, each judged once on the same examples."""
