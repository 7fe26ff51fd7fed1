"""What a reproduction needs: the revision, its code, its data, an interpreter, the recorded execution."""
