"""Generating text: sampling and beam search, each one compiled loop over a cache."""

from headjax.models.generation.beam import Beams, beam_search
from headjax.models.generation.generate import Generated, generate
from headjax.models.generation.sampling import Greedy, Sample, Sampler

__all__ = ["Beams", "Generated", "Greedy", "Sample", "Sampler", "beam_search", "generate"]
