"""Tokenizers: the value, the files of Hugging Face directories, and vocabularies learned from text."""
