"""Shrinking: heads, sizes, sharing and units of every layer, chosen together for a budget."""
