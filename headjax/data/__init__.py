"""Text in, batches out: corpora, tokenizers and Grain readers."""
