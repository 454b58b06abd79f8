"""The main job in small: train three formulations on text that ships with Python, and see what their heads do."""
