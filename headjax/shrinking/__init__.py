"""Shrinking: layers, and the heads, sizes, sharing and units of each, chosen together for a budget."""
