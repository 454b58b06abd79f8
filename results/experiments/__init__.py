"""Experiments that no command of headjax runs."""
