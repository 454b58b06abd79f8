"""Values that every other package builds on: tensors, serialisation, errors, files, progress, timing."""
