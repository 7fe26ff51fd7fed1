"""`parrotflow reproduce REV`: rebuild a published revision from its record, and say whether it is the same."""
