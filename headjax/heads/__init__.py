"""Which heads matter: gates, scores, ablation and removal."""
