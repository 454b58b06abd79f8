"""Meshes and the rules that map tensors onto them."""
