"""Hugging Face directories in and out."""
