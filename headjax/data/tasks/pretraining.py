"""BERT's pre-training on Wikipedia and books (Devlin et al. 2019).

BooksCorpus is distributed by nobody any more; the books of TFDS are PG-19, Project Gutenberg's from before 1919.
"""

from __future__ import annotations

from headjax.data.prepared.pretraining import PretrainingForm
from headjax.data.tasks.language import ANY_TEXT, BOOKS, WIKIPEDIA, local_documents
from headjax.data.tasks.spec import TaskSpec

TASKS = (
    TaskSpec(
        name="bert_pretraining",
        form=PretrainingForm(),
        local=local_documents,
        sources=(WIKIPEDIA, BOOKS),
        files=ANY_TEXT,
    ),
)
