"""`headjax report`: everything about a model's heads on one page."""
