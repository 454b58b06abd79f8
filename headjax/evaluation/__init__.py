"""Evaluation of models on tasks: tasks by name or file, measures, metrics, examples to choose heads on."""
