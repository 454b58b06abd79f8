"""The normalisations of `headjax.core.norms`, under the name the stacks import them by."""

from headjax.core.norms import LayerNorm, Norm, RMSNorm

__all__ = ["LayerNorm", "Norm", "RMSNorm"]
