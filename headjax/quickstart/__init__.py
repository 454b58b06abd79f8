"""The heads of a small decoder taken apart, and three formulations trained side by side, on one page."""
