"""Text of token ids, as the audit reads them."""

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from logs_ui.recorder.audit.token_faults import decode


def test_ids_that_stand_for_images_have_no_text() -> None:
    tokenizer = Tokenizer(WordLevel({"tea": 0, "rice": 1}))
    assert decode(tokenizer, np.array([-1, 1, 0], np.int32)) == "rice tea"
