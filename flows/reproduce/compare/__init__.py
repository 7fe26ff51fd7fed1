"""What came out, against what is recorded."""
