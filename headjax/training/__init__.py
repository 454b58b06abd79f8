"""The training loop, its state, its optimizer and its checkpoints."""
