"""Find the heads that matter, and remove the others: gates, scores, ablation, orders, surgery."""
