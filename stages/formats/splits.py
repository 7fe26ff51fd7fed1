"""The splits of the corpus: each has a folder of that name among the documents and among the tokens."""

TRAIN = "train"
"""What the model is trained on."""

VALIDATION = "validation"
"""What is held out, to measure the model on."""

SPLITS = (TRAIN, VALIDATION)
