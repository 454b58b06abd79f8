"""The normalisations of `headjax.norms`, under the name the stacks import them by."""

from headjax.norms import LayerNorm, Norm, RMSNorm

__all__ = ["LayerNorm", "Norm", "RMSNorm"]
