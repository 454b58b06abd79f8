"""The heads of any Flax model: attention layers found in it, scored, ablated, gated, removed and refitted."""
