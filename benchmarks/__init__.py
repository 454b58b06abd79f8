"""Side-by-side measurements against named peers."""
