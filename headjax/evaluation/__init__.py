"""Metrics of models on tasks."""
